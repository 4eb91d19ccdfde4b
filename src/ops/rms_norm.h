// RMSNorm over the last axis, with an optional residual add in front.
//
//   forward    s = x + residual  (s = x without one)
//              y = s r w,   r = 1 / sqrt(mean_d s_d^2 + eps)
//   backward   c  = mean_d (s_d r) (w_d dy_d)
//              ds = r (w dy - s r c)  + dsum        dw += sum over rows of dy s r
//              (ds is the gradient of both x and residual; dsum is what flows into s from elsewhere)
//
// The norm sees the sum before it is rounded to the activation dtype. With activations in bf16 the stream (sums and
// their gradient) may be f32.
// Source: arXiv:1910.07467. Derivation: docs/maths/rms_norm.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct RmsNormForward {
  Tensor x_RD;         // in     dtype of y, without residual also f32; rows may be strided
  Tensor residual_RD;  // in     optional, dtype of y or f32
  Tensor weight_D;     // in     f32 (f64)
  Tensor sum_RD;       // out    required with residual, its dtype: x + residual; may alias residual, and x where dtypes agree
  Tensor y_RD;         // out    activation dtype, contiguous
  Tensor inv_rms_R;    // saved  f32 (f64); the r above
  double eps = 1e-6;
};

struct RmsNormBackward {
  Tensor dy_RD;          // in     activation dtype
  Tensor sum_RD;         // in     s, or x where there was no residual: dtype of dy or f32; rows may be strided
  Tensor weight_D;       // in
  Tensor inv_rms_R;      // in     saved by forward
  Tensor dsum_RD;        // in     optional, dtype of sum; may alias dx
  Tensor dx_RD;          // out    dtype of sum, overwrites; rows may be strided
  Tensor dweight_D;      // out    f32 (f64), accumulates
  Tensor dx_rounded_RD;  // out    optional: dx in the dtype of dy, for products; contiguous
};

// Accumulates in f32 (f64 for f64), dweight over rows in a fixed order. Throws ShapeError for the first argument that
// disagrees.
void rms_norm_forward(const Context& context, const RmsNormForward& args);
void rms_norm_backward(const Context& context, const RmsNormBackward& args);

struct RmsNormKernels {
  void (*forward)(const Context&, const RmsNormForward&) = nullptr;
  void (*backward)(const Context&, const RmsNormBackward&) = nullptr;
};

}  // namespace deltatrain::ops
