// The gated delta rule: the token mixer of GDN (one decay per value head) and KDA (one per key channel).
//
// Per value head, with the state S of size K x V, S = initial state or 0, for each token t of a sequence:
//
//   S  <- diag(exp(g_t)) S                      (decay; GDN: a scalar)
//   d   = beta_t (v_t - S^T k_t)                (what the state does not yet say about v_t)
//   S  <- S + k_t d^T
//   o_t = scale S^T q_t
//
// Value head h reads the q and k of head h / (G / H). q and k arrive normalised. The recurrence is the
// definition; backends evaluate it in chunks of C = 64 tokens as products of matrices, where exponents are
// differences of cumulative log decays with the later index first and so never positive.
//
// Backward gives the gradients of q, k (summed over the value heads that share them), v, g, beta and the
// initial state. Source: arXiv:2412.06464, arXiv:2510.26692. Derivation: docs/maths/gated_delta_rule.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct GatedDeltaRuleForward {
  Tensor q_RHK;              // in     contiguous
  Tensor k_RHK;              // in     contiguous
  Tensor v_RGV;              // in     rows may be strided
  Tensor g_RGK;              // in     f32 (f64), natural log, <= 0; last axis 1 (GDN) or K (KDA)
  Tensor beta_RG;            // in     f32 (f64)
  Sequences sequences;
  Tensor initial_state_SGKV; // in     optional, f32 (f64)
  Tensor final_state_SGKV;   // out    optional, f32 (f64); may alias initial_state
  Tensor o_RGV;              // out    contiguous
  Tensor saved;              // saved  optional u8 [gated_delta_rule_saved_bytes]; not defined: no backward follows
  double scale = 1;          // 1 / sqrt(K) in all models
};

struct GatedDeltaRuleBackward {
  Tensor do_RGV;              // in     contiguous
  Tensor d_final_state_SGKV;  // in     optional, f32 (f64)
  Tensor q_RHK;               // in     as in forward
  Tensor k_RHK;               // in
  Tensor v_RGV;               // in
  Tensor g_RGK;               // in
  Tensor beta_RG;             // in
  Sequences sequences;
  Tensor initial_state_SGKV;  // in     optional
  Tensor saved;               // in     what forward left
  Tensor dq_RHK;              // out    activation dtype, overwrites, contiguous
  Tensor dk_RHK;              // out    activation dtype, overwrites, contiguous
  Tensor dv_RGV;              // out    activation dtype, overwrites; rows may be strided
  Tensor dg_RGK;              // out    f32 (f64), overwrites
  Tensor dbeta_RG;            // out    f32 (f64), overwrites
  Tensor d_initial_state_SGKV;// out    optional, f32 (f64), overwrites
  double scale = 1;
};

// Accumulates in f32 (f64 for f64), cumulative log decays on the CPU in f64. Scratch comes from the context's arena.
// Throws ShapeError for the first argument that disagrees, UnsupportedError naming the head sizes where a backend has
// none for them.
void gated_delta_rule_forward(const Context& context, const GatedDeltaRuleForward& args);
void gated_delta_rule_backward(const Context& context, const GatedDeltaRuleBackward& args);

// Bytes of `saved` for these arguments on this backend; data pointers are not looked at.
int64_t gated_delta_rule_saved_bytes(const Context& context, const GatedDeltaRuleForward& args);

struct GatedDeltaRuleKernels {
  void (*forward)(const Context&, const GatedDeltaRuleForward&) = nullptr;
  void (*backward)(const Context&, const GatedDeltaRuleBackward&) = nullptr;
  int64_t (*saved_bytes)(const Context&, const GatedDeltaRuleForward&) = nullptr;
};

}  // namespace deltatrain::ops
