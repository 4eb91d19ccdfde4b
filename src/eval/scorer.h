// Log-likelihoods of continuations: sums of log p(token | everything before it) under a model.
//
// Requests with one context share it: it goes through the model once, and each continuation goes on
// from a copy of the state after it. A score depends on its own tokens alone, bit for bit on the
// CPU: not on the number of requests, their order, the batch size or the number of threads (see
// decode/tile_decoder.h). For that, every context is cut off from its continuation in the same way,
// shared or not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "decode/tile_decoder.h"
#include "eval/tokens.h"

namespace deltatrain::eval {

struct Score {
  double log_likelihood = 0;
  bool is_greedy = false;  // every token is the first most likely one
};

// kF32: logits as the backend gives them, log-softmax in f32 or better, sums in f64.
// kBF16: logits, each log-probability and the sum are rounded to bf16, as a bf16 run of the harness
// does.
enum class ScorePrecision : uint8_t { kF32, kBF16 };

struct ScorerOptions {
  int64_t batch_size = 0;  // sequences at a time; 0: chosen by memory
  int64_t max_length = 2048;
  ScorePrecision precision = ScorePrecision::kF32;
};

// What the last call of score() did.
struct ScorerWork {
  int64_t num_contexts = 0;     // different ones
  int64_t tokens = 0;           // that went through the model, without what fills passes up
  int64_t tokens_unshared = 0;  // that would have, had every request brought its own context
  int64_t passes = 0;
};

class Scorer {
 public:
  // Contexts without arena. Weights are set through parameters().
  Scorer(const Context& context, const Context& planning_context, const ModelConfig& config,
         const ScorerOptions& options);
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  const Context& context() const { return decoder_->context(); }
  layers::ParameterStore& parameters() { return decoder_->parameters(); }
  int64_t batch_size() const { return batch_size_; }
  const ScorerWork& work() const { return work_; }

  // In the order of the requests, which are not empty and hold max_length + 1 tokens at most
  // (eval/tokens.h); all ids are below the model's vocabulary size, else FormatError. NumericError
  // when a logit is not finite.
  std::vector<Score> score(std::span<const TokenRequest> requests, Reporter& reporter);

 private:
  struct Run;

  std::unique_ptr<decode::TileDecoder> decoder_;
  std::unique_ptr<decode::State> contexts_;  // after each context of a batch, for those that go on
  ScorerOptions options_;
  int64_t batch_size_ = 1;
  ScorerWork work_;
};

}  // namespace deltatrain::eval
