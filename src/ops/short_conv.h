// Causal depthwise convolution over tokens with SiLU, before the delta rule.
//
//   forward    z_t = sum_{j < W} w[x, j] in_{t - W + 1 + j}       y = z sigmoid(z)
//              (in_{-1}, in_{-2}, ... of a sequence come from its history, or are zero)
//   backward   dz = dy sigmoid(z) (1 + z (1 - sigmoid(z)))        z is recomputed
//              din_t = sum_j w[x, j] dz_{t + W - 1 - j}           dw[x, j] += sum_t dz_t in_{t - W + 1 + j}
//
// A history is the last W - 1 inputs of a sequence, oldest first: row W - 2 is the newest. Training starts
// sequences without one, so backward has no gradient for it.
// Source: arXiv:2412.06464. Derivation: docs/maths/short_conv.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct ShortConvForward {
  Tensor x_RX;                // in   X channels; rows may be strided
  Tensor weight_XW;           // in   f32 (f64), W taps, the last one meets the current token
  Sequences sequences;
  Tensor initial_history_SWX; // in   optional, [S, W-1, X], f32 (f64)
  Tensor final_history_SWX;   // out  optional, the same form; may alias initial_history
  Tensor y_RX;                // out  rows may be strided
};

struct ShortConvBackward {
  Tensor dy_RX;               // in   rows may be strided
  Tensor x_RX;                // in   forward's input
  Tensor weight_XW;           // in
  Sequences sequences;
  Tensor dx_RX;               // out  overwrites; rows may be strided; must not alias dy
  Tensor dweight_XW;          // out  f32 (f64), accumulates
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees, UnsupportedError for more
// than 8 taps.
void short_conv_forward(const Context& context, const ShortConvForward& args);
void short_conv_backward(const Context& context, const ShortConvBackward& args);

struct ShortConvKernels {
  void (*forward)(const Context&, const ShortConvForward&) = nullptr;
  void (*backward)(const Context&, const ShortConvBackward&) = nullptr;
};

}  // namespace deltatrain::ops
