// Everything a model computes for given tokens, into one safetensors file: the material of
// comparisons between backends, checkpoints and the reference implementation.
//
//   input_ids [B, T] i32     logits [B, T, N]     loss [1]: mean over the labels
//   hidden.0 .. hidden.L [B, T, D]: the residual stream after the embedding and after each block
//   grad.PARAMETER: gradients of the loss, on request.        All f32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "device/context.h"

namespace deltatrain::verify {

struct TokenMatrix {
  int64_t num_rows = 0;    // B
  int64_t row_length = 0;  // T
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;   // empty: each row's own next tokens, its last position left out
  std::vector<int32_t> offsets;  // [S + 1] sequence starts; empty: one sequence a row
};

// From .safetensors (tensor "input_ids"), .npy (one or two axes of whole
// numbers) or .json (a list of ids, a list of equally long lists,
// or an object with "input_ids"). Ids are checked against the vocabulary.
TokenMatrix read_tokens(const std::filesystem::path& path, int64_t vocab_size);

// Of the config.json beside a model's weights.
int64_t model_vocab_size(const std::filesystem::path& model_path);

enum class DumpGradients : uint8_t { kNo, kYes };

// Contexts without arena. Throws what loading and reading
// throw; `out` is written whole or not at all.
void dump(const Context& context, const Context& planning_context,
          const std::filesystem::path& model_path, const TokenMatrix& tokens,
          const std::filesystem::path& out, DumpGradients gradients);

}  // namespace deltatrain::verify
