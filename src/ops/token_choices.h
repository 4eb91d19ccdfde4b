// The next token of each row of logits, drawn or given, with what is told of it: its logit, the row's log-sum-exp and the
// most likely tokens.
//
//   lse_r = log sum_n exp(x_rn)      order: larger x first, the lower id first among equals
//   w_n = floor(2^40 exp((x_n - max x) min(1 / temperature, largest f64)))      whole numbers, as f64 has it
//   kept: the first top_k of the order, of them the fewest first whose w sum to top_p of all their w, at least one
//   id: the first id, counted up from 0, with sum of w over kept ids up to it > floor(uniform sum of w over kept)
//
// Sums of whole numbers have no order: what a row gives depends on the row alone, and hardly on the device.
// Source: definition. Derivation: docs/maths/token_choices.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct TokenChoices {
  Tensor logits_RN;      // in   activation dtype; N at most kMaxChoiceColumns
  Tensor given_R;        // in   i32: a token below N that is told of, or -1: one is drawn
  Tensor temperature_R;  // in   f64; 0: the most likely token
  Tensor top_p_R;        // in   f64; from 1 on: all
  Tensor uniform_R;      // in   f64 in [0, 1): decides the draw
  Tensor top_k_R;        // in   i32; 0: all
  Tensor num_top_R;      // in   i32 in [0, X]: how many of the most likely are told
  Tensor id_R;           // out  i32; -1 where a logit is NaN or the largest is infinite
  Tensor logit_R;        // out  f32 (f64): of id; NaN where id is -1
  Tensor lse_R;          // out  f32 (f64); NaN where id is -1
  Tensor top_ids_RX;     // out  i32, in order; -1 past num_top and N, and where id is -1
  Tensor top_logits_RX;  // out  f32 (f64), of top_ids; 0 where that is -1
};

inline constexpr int64_t kMaxChoiceColumns = int64_t{1} << 22;  // 2^62 for the sum of all w
inline constexpr int64_t kMaxTopTokens = 64;                    // of X

// Accumulates in f32 (f64 for f64) for log-sum-exps, on the CPU long sums in f64, and in whole numbers
// for draws. Throws ShapeError for the first argument that disagrees; what stands in the inputs is not
// looked at.
void token_choices(const Context& context, const TokenChoices& args);

struct TokenChoicesKernels {
  void (*apply)(const Context&, const TokenChoices&) = nullptr;
};

}  // namespace deltatrain::ops
