// L2 normalisation over the last axis, applied to q and k before the delta rule.
//
//   forward    y = x r,  r = 1 / sqrt(sum_k x_k^2 + eps)
//   backward   dx = r (dy - y sum_k y_k dy_k)
//
// A row of zeros gives zeros. Source: arXiv:2412.06464. Derivation: docs/maths/l2_norm.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct L2NormForward {
  Tensor x_RHK;        // in     rows may be strided
  Tensor y_RHK;        // out    contiguous, dtype of x
  Tensor inv_norm_RH;  // saved  f32 (f64); the r above
  double eps = 1e-6;
};

struct L2NormBackward {
  Tensor dy_RHK;       // in     contiguous
  Tensor y_RHK;        // in     forward's output: x itself need not be kept
  Tensor inv_norm_RH;  // in     saved by forward
  Tensor dx_RHK;       // out    overwrites; rows may be strided; may alias dy
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees.
void l2_norm_forward(const Context& context, const L2NormForward& args);
void l2_norm_backward(const Context& context, const L2NormBackward& args);

struct L2NormKernels {
  void (*forward)(const Context&, const L2NormForward&) = nullptr;
  void (*backward)(const Context&, const L2NormBackward&) = nullptr;
};

}  // namespace deltatrain::ops
