// Residual add, RMSNorm, a product and SwiGLU or the choice of the largest output, as when decoding: in one op because
// for few rows the launches cost more than the work.
//
//   s = x + residual     n = rms_norm(s)     p = n W^T     y = p or swiglu(p)     index = row_argmax(y)
//
// The definition is that composition of ops (norm_linear.cpp runs it where a backend has nothing better for the
// rows at hand); what passes between the parts is rounded as there. No backward: nothing is trained token by token.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct NormLinear {
  Tensor x_RD;           // in   rows may be strided
  Tensor residual_RD;    // in   optional
  Tensor norm_weight_D;  // in   f32 (f64)
  Tensor sum_RD;         // out  required with residual: s; aliases neither x nor residual
  Tensor weight_XD;      // in   dtype of x
  Tensor y_RX;           // out  dtype of x, contiguous: [R, X], with kSwiglu [R, X / 2]
  Tensor index_R;        // out  optional, i32: the largest of each row of y, as row_argmax
  double eps = 1e-6;
  enum class Activation : uint8_t { kNone, kSwiglu } activation = Activation::kNone;
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees. Takes scratch from the
// arena.
void norm_linear(const Context& context, const NormLinear& args);

struct NormLinearKernels {
  // False, with nothing done, for arguments that the composition suits better; null: the composition. `workspace`
  // has norm_linear_workspace_bytes bytes.
  bool (*apply)(const Context&, const NormLinear&, const Tensor& workspace) = nullptr;
};

int64_t norm_linear_workspace_bytes(int64_t num_rows, int64_t width, DType dtype);

}  // namespace deltatrain::ops
