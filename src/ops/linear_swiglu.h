// SwiGLU together with the product beside it, in one op each way because SwiGLU reads and writes as much memory as the
// product does, and next to a product it need not.
//
//   forward    gate_up = x W^T                  y = swiglu(gate_up)
//   backward   dy = dz V                        dgate_up = swiglu's gradient at gate_up
//
// with z = y V^T the projection that takes y. The definition is those compositions of linear and swiglu
// (linear_swiglu.cpp runs them where a backend has nothing better for the arguments at hand); what passes between the
// parts, gate_up and dy, is rounded as there. Derivation: docs/maths/swiglu.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct LinearSwigluForward {
  Tensor x_RD;        // in     contiguous
  Tensor weight_XD;   // in     dtype of x; the rows of the gate, then as many of up: X = 2 F
  Tensor gate_up_RX;  // saved  dtype of x, contiguous
  Tensor y_RF;        // out    dtype of x, contiguous
};

struct LinearSwigluBackward {
  Tensor dz_RD;        // in   contiguous
  Tensor weight_DF;    // in   V, dtype of dz
  Tensor gate_up_RX;   // in   saved by forward
  Tensor dgate_up_RX;  // out  overwrites; may alias gate_up
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees. Backward takes scratch
// from the arena for dy where it runs the composition.
void linear_swiglu_forward(const Context& context, const LinearSwigluForward& args);
void linear_swiglu_backward(const Context& context, const LinearSwigluBackward& args);

struct LinearSwigluKernels {
  // False, with nothing done, for arguments that the composition suits better; null: the composition.
  bool (*forward)(const Context&, const LinearSwigluForward&) = nullptr;
  bool (*backward)(const Context&, const LinearSwigluBackward&) = nullptr;
};

}  // namespace deltatrain::ops
