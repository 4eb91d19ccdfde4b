// SwiGLU between the projections of the MLP; gate and up lie side by side, [gate | up].
//
//   forward    y = gate sigmoid(gate) up
//   backward   dgate = dy up sigmoid(gate) (1 + gate (1 - sigmoid(gate)))      dup = dy gate
//   sigmoid(gate)
//              y, for the gradient of the down projection: kept by the caller, or made again
//
// Source: arXiv:2002.05202. Derivation: docs/maths/swiglu.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct SwigluForward {
  Tensor gate_up_RX;  // in   X = 2 F, contiguous
  Tensor y_RF;        // out  contiguous
};

struct SwigluBackward {
  Tensor dy_RF;        // in   contiguous
  Tensor gate_up_RX;   // in
  Tensor dgate_up_RX;  // out  overwrites; may alias gate_up
  Tensor y_RF;         // out  optional: the output once more
};

// Accumulates in f32 (f64 for f64): every element by itself. Throws ShapeError for the first argument that disagrees.
void swiglu_forward(const Context& context, const SwigluForward& args);
void swiglu_backward(const Context& context, const SwigluBackward& args);

struct SwigluKernels {
  void (*forward)(const Context&, const SwigluForward&) = nullptr;
  void (*backward)(const Context&, const SwigluBackward&) = nullptr;
};

}  // namespace deltatrain::ops
