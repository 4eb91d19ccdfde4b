// Keys of multi-head latent attention: each head's own part beside the rotary part that all heads share.
//
//   forward    k[r, h] = [ k_nope[r, h] | k_rope[r] ]
//   backward   dk_nope[r, h] = first part of dk[r, h]        dk_rope[r] = sum_h second part of dk[r, h]
//
// Source: arXiv:2405.04434. Derivation: docs/maths/mla_key.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct MlaKeyForward {
  Tensor k_nope_RHX;  // in   rows and heads may be strided
  Tensor k_rope_RX;   // in   rotated already; rows may be strided
  Tensor k_RHK;       // out  contiguous, K = the sum of both widths
};

struct MlaKeyBackward {
  Tensor dk_RHK;       // in
  Tensor dk_nope_RHX;  // out  overwrites; rows and heads may be strided
  Tensor dk_rope_RX;   // out  overwrites; rows may be strided
};

// Accumulates in f32 (f64 for f64) over heads; the rest is copied. Throws ShapeError for the first argument that
// disagrees.
void mla_key_forward(const Context& context, const MlaKeyForward& args);
void mla_key_backward(const Context& context, const MlaKeyBackward& args);

struct MlaKeyKernels {
  void (*forward)(const Context&, const MlaKeyForward&) = nullptr;
  void (*backward)(const Context&, const MlaKeyBackward&) = nullptr;
};

}  // namespace deltatrain::ops
