// RMSNorm of the delta rule's output over each value head, times an activated gate: normalise, then gate.
//
//   forward    u = o r w,  r = 1 / sqrt(mean_v o_v^2 + eps)         y = u act(z)
//              act(z) = z sigmoid(z) (SiLU; GDN)  or  sigmoid(z) (KDA)
//   backward   dz = dy u act'(z)        du = dy act(z)        then RMSNorm's backward with dy := du
//
// The weight [V] is shared by all heads.
// Source: arXiv:2412.06464 (output gate). Derivation: docs/maths/gated_rms_norm.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

enum class GateActivation : uint8_t { kSilu, kSigmoid };

struct GatedRmsNormForward {
  Tensor o_RGV;         // in     contiguous
  Tensor gate_RGV;      // in     z; rows may be strided
  Tensor weight_V;      // in     f32 (f64)
  Tensor y_RGV;         // out    contiguous
  Tensor inv_rms_RG;    // saved  f32 (f64)
  double eps = 1e-6;
  GateActivation activation = GateActivation::kSilu;
};

struct GatedRmsNormBackward {
  Tensor dy_RGV;       // in     contiguous
  Tensor o_RGV;        // in
  Tensor gate_RGV;     // in     rows may be strided
  Tensor weight_V;     // in
  Tensor inv_rms_RG;   // in     saved by forward
  Tensor do_RGV;       // out    overwrites; may alias dy
  Tensor dgate_RGV;    // out    overwrites; rows may be strided
  Tensor dweight_V;    // out    f32 (f64), accumulates
  GateActivation activation = GateActivation::kSilu;
};

// Accumulates in f32 (f64 for f64), dweight over rows in a fixed order. Throws ShapeError for the first argument that
// disagrees.
void gated_rms_norm_forward(const Context& context, const GatedRmsNormForward& args);
void gated_rms_norm_backward(const Context& context, const GatedRmsNormBackward& args);

struct GatedRmsNormKernels {
  void (*forward)(const Context&, const GatedRmsNormForward&) = nullptr;
  void (*backward)(const Context&, const GatedRmsNormBackward&) = nullptr;
};

}  // namespace deltatrain::ops
