// Linear layer: a product with a weight stored [out, in], as in checkpoints.
//
//   forward    y = x W^T + bias          (kAccumulate: y += ...; used to add into the residual stream)
//   backward   dx = dy W      dW += dy^T x      dbias += sum over rows of dy
//
// Source: definition. Derivation: docs/maths/linear.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct LinearForward {
  Tensor x_RD;       // in   activations; rows may be strided
  Tensor weight_XD;  // in   dtype of x
  Tensor bias_X;     // in   optional, f32 (f64 where x is f64)
  Tensor y_RX;       // out  dtype of x, or f32; rows may be strided
  GradMode y_mode = GradMode::kOverwrite;
};

struct LinearBackward {
  Tensor dy_RX;       // in   rows may be strided
  Tensor x_RD;        // in   forward's input; needed for dweight
  Tensor weight_XD;   // in   needed for dx
  Tensor dx_RD;       // out  optional, as dx_mode says
  Tensor dweight_XD;  // out  optional, f32 (f64), as dweight_mode says
  Tensor dbias_X;     // out  optional, f32 (f64), as dweight_mode says
  GradMode dx_mode = GradMode::kOverwrite;
  GradMode dweight_mode = GradMode::kAccumulate;
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees.
void linear_forward(const Context& context, const LinearForward& args);
void linear_backward(const Context& context, const LinearBackward& args);

struct LinearKernels {
  void (*forward)(const Context&, const LinearForward&) = nullptr;
  void (*backward)(const Context&, const LinearBackward&) = nullptr;
};

}  // namespace deltatrain::ops
