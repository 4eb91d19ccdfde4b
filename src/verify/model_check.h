// Whether a folder holds a model that can be trusted: finite weights and logits, sensible losses on
// known prompts, and, against another folder, the same logits at every position.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "device/context.h"
#include "verify/model_runner.h"

namespace deltatrain::verify {

struct Prompt {
  std::string text;  // "" for rows that are not text
  std::vector<int32_t> ids;
};

// The prompts of the reference guides' conversion checks.
const std::vector<std::string>& standard_prompts();

struct PromptReport {
  std::string text;
  int64_t num_tokens = 0;
  double loss = 0;            // mean next-token loss over the prompt's own tokens; 0 for one token
  std::vector<int32_t> top5;  // after the last token, most likely first
  std::vector<int32_t> greedy;  // 40 tokens, fewer where the text ends
  bool passed = false;          // everything finite, and loss below the limit
};

// NumericError when a weight is not finite, naming the tensor.
void check_weights_finite(const ModelRunner& runner, const Context& context);

PromptReport check_prompt(ModelRunner& runner, const Prompt& prompt,
                          const std::function<bool(int32_t)>& is_end, double max_loss);

// Logits of two models compared over all positions of some rows.
struct Agreement {
  int64_t positions = 0;
  bool finite = true;
  double max_difference = 0;       // largest |a - b|
  double relative_difference = 0;  // ||a - b|| / ||b|| over everything
  double min_cosine = 1;           // smallest over positions
  int64_t same_top1 = 0;           // positions whose most likely token is the same
  int64_t same_top5 = 0;           // positions whose five most likely tokens are the same set
};

struct AgreementLimits {
  double max_difference = 1e-3;
  double min_cosine = 0.9999;
  double min_top1_share = 1;
  double min_top5_share = 1;
};

Agreement compare(ModelRunner& model, ModelRunner& other, const std::vector<Prompt>& rows,
                  Reporter& reporter);
// Names the first limit that does not hold; empty when all do.
std::string disagreement(const Agreement& agreement, const AgreementLimits& limits);

}  // namespace deltatrain::verify
