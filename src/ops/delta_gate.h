// The gates of the delta rule from the raw outputs of their projections: log decay and write strength.
//
//   forward    log decay   g = -exp(A_log) softplus(a + dt_bias)               (kSoftplus)
//                          g = bound sigmoid(exp(A_log) (a + dt_bias))         (kBounded, bound < 0)
//              strength    beta = beta_scale sigmoid(b)
//   backward   kSoftplus   da = -exp(A_log) sigmoid(a + dt_bias) dg            dA_log += sum dg g
//              kBounded    s = sigmoid(exp(A_log) (a + dt_bias)),  da = dg bound s (1 - s) exp(A_log)
//                          dA_log += sum da (a + dt_bias)
//              both        ddt_bias += sum over rows of da                     db = dbeta beta (1 - sigmoid(b))
//
// One decay per value head (GDN: the last axis has size 1) or per key channel of a value head (KDA: size K).
// softplus(x) = log1p(exp(x)), accurate for every x; g is never positive. A_log is one number per value head in both.
// Source: arXiv:2412.06464 eq. 10, arXiv:2510.26692. Derivation: docs/maths/delta_gate.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

enum class DecayForm : uint8_t { kSoftplus, kBounded };

struct DeltaGateForward {
  Tensor a_RGK;      // in   raw decay logits; K = 1 for GDN; rows may be strided
  Tensor b_RG;       // in   raw strength logits; rows may be strided
  Tensor A_log_G;    // in   f32 (f64)
  Tensor dt_bias_GK; // in   f32 (f64)
  Tensor g_RGK;      // out  f32 (f64), natural log, <= 0, contiguous
  Tensor beta_RG;    // out  f32 (f64), contiguous
  DecayForm form = DecayForm::kSoftplus;
  double lower_bound = 0;  // kBounded only
  double beta_scale = 1;   // 2 with allow_neg_eigval
};

struct DeltaGateBackward {
  Tensor dg_RGK;      // in   f32 (f64)
  Tensor dbeta_RG;    // in   f32 (f64)
  Tensor a_RGK;       // in   rows may be strided
  Tensor b_RG;        // in   rows may be strided
  Tensor A_log_G;     // in
  Tensor dt_bias_GK;  // in
  Tensor da_RGK;      // out  activation dtype, overwrites; rows may be strided
  Tensor db_RG;       // out  activation dtype, overwrites; rows may be strided
  Tensor dA_log_G;    // out  f32 (f64), accumulates
  Tensor ddt_bias_GK; // out  f32 (f64), accumulates
  DecayForm form = DecayForm::kSoftplus;
  double lower_bound = 0;
  double beta_scale = 1;
};

// Accumulates in f32 (f64 for f64), the sums over rows in a fixed order. Throws ShapeError for the first argument that
// disagrees.
void delta_gate_forward(const Context& context, const DeltaGateForward& args);
void delta_gate_backward(const Context& context, const DeltaGateBackward& args);

struct DeltaGateKernels {
  void (*forward)(const Context&, const DeltaGateForward&) = nullptr;
  void (*backward)(const Context&, const DeltaGateBackward&) = nullptr;
};

}  // namespace deltatrain::ops
