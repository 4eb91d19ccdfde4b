// Log-probabilities of given tokens and whether each is the most likely one: all that scoring needs of logits.
//
//   lse_r = log sum_n exp(logit_rn)      p_rn = logit_rn - lse_r
//   log_probability_t = p_{row_t, id_t}
//   is_greedy_t = 1 where id_t is the first of the ids with the largest p_{row_t, .}, else 0
//
// With Rounding::kBf16 logits are rounded to bf16 before, and every p after. p has the dtype of log_probability_T in
// both. The caller works in chunks of rows, so that the logits of a whole batch never exist.
// Source: definition. Derivation: docs/maths/token_scores.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct TokenScores {
  Tensor logits_RN;          // in   activation dtype
  Tensor rows_T;             // in   i32 in [0, R), in any order
  Tensor ids_T;              // in   i32 in [0, N)
  Tensor log_probability_T;  // out  f32 (f64); NaN where the row's log-sum-exp is not finite
  Tensor is_greedy_T;        // out  i32
  enum class Rounding : uint8_t { kNone, kBf16 } rounding = Rounding::kNone;
};

// Accumulates in f32 (f64 for f64), on the CPU long sums in f64. Throws ShapeError for the first argument that
// disagrees; rows and ids are not looked at.
void token_scores(const Context& context, const TokenScores& args);

struct TokenScoresKernels {
  void (*apply)(const Context&, const TokenScores&) = nullptr;
};

}  // namespace deltatrain::ops
