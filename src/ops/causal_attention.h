// Causal softmax attention, the core of multi-head latent attention.
//
//   forward    s_ij = scale q_i . k_j  for j <= i of the same sequence
//              p = softmax over j          o_i = sum_j p_ij v_j          lse_i = log sum_j exp s_ij
//   backward   p_ij = exp(s_ij - lse_i)    dv_j = sum_i p_ij do_i        dp_ij = do_i . v_j
//              ds_ij = p_ij (dp_ij - do_i . o_i)
//              dq_i = scale sum_j ds_ij k_j            dk_j = scale sum_i ds_ij q_i
//
// With a cache (decoding): the new k and v of sequence s are written to cache rows lengths[s], lengths[s] + 1, ...
// and its queries attend over all cache rows up to their own. The caller advances the lengths.
// K: width of q and k (nope and rope parts together), V: width of v; every head has its own k and v.
// Source: arXiv:1706.03762, arXiv:2307.08691. Derivation: docs/maths/causal_attention.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct CausalAttentionForward {
  Tensor q_RHK;          // in     contiguous
  Tensor k_RHK;          // in     contiguous
  Tensor v_RHV;          // in     rows and heads may be strided
  Sequences sequences;
  Tensor o_RHV;          // out    contiguous
  Tensor lse_RH;         // saved  optional, f32 (f64); not defined: no backward follows
  Tensor k_cache_SXHK;   // inout  optional, X rows of room per sequence, dtype of k
  Tensor v_cache_SXHV;   // inout  with k_cache
  Tensor cache_lengths_S;// in     with k_cache, i32 in device memory; lengths + new tokens <= X (checked by the caller)
  double scale = 1;
};

struct CausalAttentionBackward {
  Tensor do_RHV;   // in     contiguous
  Tensor q_RHK;    // in
  Tensor k_RHK;    // in
  Tensor v_RHV;    // in     rows and heads may be strided
  Tensor o_RHV;    // in     forward's output
  Tensor lse_RH;   // in     saved by forward
  Sequences sequences;
  Tensor dq_RHK;   // out    overwrites, contiguous
  Tensor dk_RHK;   // out    overwrites, contiguous
  Tensor dv_RHV;   // out    overwrites; rows and heads may be strided
  double scale = 1;
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees, UnsupportedError where a
// backend has none for the widths.
void causal_attention_forward(const Context& context, const CausalAttentionForward& args);
void causal_attention_backward(const Context& context, const CausalAttentionBackward& args);

struct CausalAttentionKernels {
  void (*forward)(const Context&, const CausalAttentionForward&) = nullptr;
  void (*backward)(const Context&, const CausalAttentionBackward&) = nullptr;
};

}  // namespace deltatrain::ops
