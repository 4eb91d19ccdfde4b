// Softmax cross-entropy over the vocabulary, forward and backward in one pass over the logits.
//
//   lse_r  = log sum_n exp(logit_rn)      loss_r = lse_r - logit_{r, label_r}      (0 for label -100)
//   dlogit_rn = (exp(logit_rn - lse_r) - [n = label_r]) grad_scale                 (0 for label -100)
//
// The caller works in chunks of rows, so that the logits of a whole batch never exist.
// Source: definition. Derivation: docs/maths/cross_entropy.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

inline constexpr int32_t kIgnoredLabel = -100;

struct CrossEntropy {
  Tensor logits_RN;   // inout  activation dtype; becomes dlogits with Gradient::kWrite
  Tensor labels_R;    // in     i32 in [0, N), or kIgnoredLabel
  Tensor loss_R;      // out    f32 (f64)
  Tensor lse_R;       // out    optional, f32 (f64)
  double grad_scale = 1;
  enum class Gradient : uint8_t { kNone, kWrite } gradient = Gradient::kWrite;
};

// Accumulates in f32 (f64 for f64), on the CPU long sums in f64. Throws ShapeError for the first argument that
// disagrees; labels are not looked at.
void cross_entropy(const Context& context, const CrossEntropy& args);

struct CrossEntropyKernels {
  void (*apply)(const Context&, const CrossEntropy&) = nullptr;
};

}  // namespace deltatrain::ops
