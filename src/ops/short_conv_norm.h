// Convolution, SiLU and L2 norm of the delta rule's queries and keys at once: what short_conv.h and
// l2_norm.h do one after the other.
//
//   forward    u = short_conv(x),  x = [q' | k']       q, k = l2_norm of the heads of u's two halves
//   backward   du from dq and dk by l2_norm's backward, then dx and dweight by short_conv's
//
// A backend without functions of its own runs these two ops; it then rounds u to the activation
// dtype in between. Source: arXiv:2412.06464. Derivation: docs/maths/short_conv.md,
// docs/maths/l2_norm.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct ShortConvNormForward {
  Tensor x_RX;       // in     X = 2 H K channels, those of q first; rows may be strided
  Tensor weight_XW;  // in     f32 (f64), as in short_conv.h
  Sequences sequences;
  Tensor initial_history_SWX;  // in     optional, [S, W-1, X], f32 (f64)
  Tensor final_history_SWX;    // out    optional; may alias initial_history
  Tensor q_RHK;                // out    contiguous
  Tensor k_RHK;                // out    contiguous
  Tensor q_inv_norm_RH;        // saved  f32 (f64)
  Tensor k_inv_norm_RH;        // saved
  double eps = 1e-6;
};

struct ShortConvNormBackward {
  Tensor dq_RHK;         // in   contiguous
  Tensor dk_RHK;         // in
  Tensor q_RHK;          // in   forward's outputs
  Tensor k_RHK;          // in
  Tensor q_inv_norm_RH;  // in   saved by forward
  Tensor k_inv_norm_RH;  // in
  Tensor x_RX;           // in   forward's input
  Tensor weight_XW;      // in
  Sequences sequences;
  Tensor dx_RX;       // out  overwrites; rows may be strided
  Tensor dweight_XW;  // out  f32 (f64), accumulates
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees, UnsupportedError for more
// than 8 taps.
void short_conv_norm_forward(const Context& context, const ShortConvNormForward& args);
void short_conv_norm_backward(const Context& context, const ShortConvNormBackward& args);

// The same by the two plain ops, with scratch for what stands between them. For backends whose own
// functions don't cover every shape.
void short_conv_norm_forward_by_parts(const Context& context, const ShortConvNormForward& args);
void short_conv_norm_backward_by_parts(const Context& context, const ShortConvNormBackward& args);

struct ShortConvNormKernels {
  void (*forward)(const Context&, const ShortConvNormForward&) = nullptr;
  void (*backward)(const Context&, const ShortConvNormBackward&) = nullptr;
};

}  // namespace deltatrain::ops
