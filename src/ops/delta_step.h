// One token per sequence through everything that lies between a delta mixer's projections, as when
// decoding: in one op because at that size the launches cost more than the work.
//
//   q, k = l2_norm(short_conv(qk))     v = short_conv(v)     g, beta = delta_gate(a, b)
//   o = gated_delta_rule(q, k, v, g, beta)     y = gated_rms_norm(o, z), or rms_norm(o) without z
//
// a, and z beside it, may be given as low-rank pairs: a = linear(a_low, a_weight), z = linear(z_low, z_weight, z_bias).
//
// The definition is that composition of ops (delta_step.cpp runs it where a backend has nothing
// better); what passes between the parts may be rounded or not. No backward: nothing is trained
// token by token.
#pragma once

#include "ops/context.h"
#include "ops/delta_gate.h"      // DecayForm
#include "ops/gated_rms_norm.h"  // GateActivation

namespace deltatrain::ops {

struct DeltaStep {
  Tensor qk_SX;           // in     [S, 2 H K], q then k; rows may be strided
  Tensor v_SX;            // in     [S, G V]; rows may be strided
  Tensor a_SGK;           // in     raw decay logits, last axis 1 or K; rows may be strided
  Tensor a_low_SP;        // in     in place of a, which has width K then; rows may be strided
  Tensor a_weight_XP;     // in     with a_low: [G K, P], activation dtype
  Tensor b_SG;            // in     raw strength logits; rows may be strided
  Tensor z_SX;            // in     optional, [S, G V]; rows may be strided
  Tensor z_low_SP;        // in     with a_low, in place of z; rows may be strided
  Tensor z_weight_XP;     // in     with z_low: [G V, P], activation dtype
  Tensor z_bias_X;        // in     with z_low: f32 (f64)
  Tensor qk_conv_XW;      // in     f32 (f64)
  Tensor v_conv_XW;       // in     f32 (f64)
  Tensor A_log_G;         // in     f32 (f64)
  Tensor dt_bias_GK;      // in     f32 (f64)
  Tensor norm_weight_V;   // in     f32 (f64)
  Sequences sequences;    // S sequences of one row
  Tensor qk_history_SWX;  // inout  [S, W - 1, 2 H K], f32 (f64)
  Tensor v_history_SWX;   // inout  [S, W - 1, G V], f32 (f64)
  Tensor state_SGKV;      // inout  f32 (f64)
  Tensor y_SX;            // out    [S, G V], contiguous
  DecayForm form = DecayForm::kSoftplus;
  double lower_bound = 0;  // kBounded only
  double beta_scale = 1;
  double norm_eps = 1e-6;
  GateActivation activation = GateActivation::kSilu;
};

// H follows from the widths. Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees.
void delta_step(const Context& context, const DeltaStep& args);

struct DeltaStepKernels {
  void (*apply)(const Context&, const DeltaStep&) = nullptr;  // null: the composition
};

}  // namespace deltatrain::ops
