// One chunk of up to 64 tokens of the gated delta rule for one value head, forward and backward.
//
// Equations (rows i, j of the chunk; G: cumulative log decay inside it, G_C its last row; S0: state
// that enters; E_ij = exp(G_i - G_j) for i >= j, per channel for KDA):
//
//   L_ij = beta_i sum_c k_ic k_jc E_ijc (i > j)      P_ij = scale sum_c q_ic k_jc E_ijc (i >= j)
//   K+ = k exp(G)         Ke = k exp(G_C - G)        Q+ = scale q exp(G)
//   forward    Y = v - K+ S0       (I + L) U = beta Y
//              O = Q+ S0 + P U     S1 = exp(G_C) S0 + Ke^T U
//   backward   dU = P^T dO + Ke dS1        (I + L)^T dR = dU        dV = beta dR
//              dS0 = exp(G_C) dS1 + Q+^T dO - K+^T dV
//              dP = tril(dO U^T)     dL = -stril(dR U^T)
//              dq_i = scale exp(G_i) (S0 dO_i) + scale sum_j dP_ij E_ij k_j
//              r_i  = sum_j dL_ij E_ij k_j          dbeta_i = dR_i . Y_i + r_i . k_i
//              dk_i = -exp(G_i) (S0 dV_i) + exp(G_C - G_i) (dS1 U_i) + beta_i r_i
//                     + sum_j E_ji (scale dP_ji q_j + beta_j dL_ji k_j)
//   The systems with I + L are solved by blocks of 16 rows, whose diagonal blocks are inverted.
//   The derivative for g_m adds up, with plus signs only, what lies on the paths that cross step m:
//   pairs i >= m > j, reads of S0 by rows i >= m, writes to S1 of rows j < m, and S0 -> S1. Nothing
//   cancels, so strong decay leaves zeros and not roundings of large numbers.
//
// Exponents are differences of double sums with the later row first, so none is positive. Pairs in
// different blocks of 16 rows factor through the first row n of the later block,
// exp(G_i - G_n) exp(G_n - G_j); within a block E is the running product of exp(g).
//
// Columns are padded with zeros to whole vectors (Kp, Vp), rows to whole blocks of 16.
#pragma once

#include <cstdint>

#include "backend/cpu/small_gemm.h"

namespace deltatrain::backend::cpu {

inline constexpr int64_t kChunk = 64;
inline constexpr int64_t kBlock = 16;  // rows of a block: one vector

struct DeltaSizes {
  int64_t K;
  int64_t V;
  int64_t Kp;
  int64_t Vp;
  bool per_channel;  // KDA
};

DeltaSizes delta_sizes(int64_t K, int64_t V, bool per_channel);

// What backward needs of a chunk. Each pointer is into one block of saved_floats(sizes) floats.
struct ChunkSaved {
  float* state;    // S0 [Kp, Vp]
  float* lower;    // L [64, 64], zero on and above the diagonal
  float* inverse;  // of the diagonal blocks of I + L, [4, 16, 16]
  float* values;   // U [64, Vp]
  float* scores;   // P [64, 64], zero above the diagonal; KDA only, GDN makes it again
};

int64_t saved_floats(const DeltaSizes& sizes);
ChunkSaved saved_at(const DeltaSizes& sizes, float* data);

// One value head's rows of the chunk in the caller's tensors.
struct ChunkInput {
  const float* q;
  const float* k;
  int64_t qk_stride;
  const float* v;
  int64_t v_stride;
  const float* g;  // 1 or K per row
  int64_t g_stride;
  const float* beta;
  int64_t beta_stride;
  int64_t num_rows;
  float scale;
};

struct ChunkGradients {
  const float* d_out;
  int64_t d_out_stride;
  float* dq;
  float* dk;
  int64_t dqk_stride;
  bool adds_qk;  // another value head has written dq and dk already
  float* dv;
  int64_t dv_stride;
  float* dg;
  int64_t dg_stride;
  float* dbeta;
  int64_t dbeta_stride;
};

// Floats of working memory that one thread needs, 64-byte aligned.
int64_t forward_workspace_floats(const DeltaSizes& sizes);
int64_t backward_workspace_floats(const DeltaSizes& sizes);

// `state` [Kp, Vp] goes from S0 to S1. saved.state is not written: the caller keeps S0.
void delta_chunk_forward(const DeltaSizes& sizes, const ChunkInput& in, float* workspace,
                         float* state, const ChunkSaved& saved, float* out, int64_t out_stride);

// `d_state` [Kp, Vp] goes from dS1 to dS0.
void delta_chunk_backward(const DeltaSizes& sizes, const ChunkInput& in, float* workspace,
                          float* d_state, const ChunkSaved& saved, const ChunkGradients& gradients);

}  // namespace deltatrain::backend::cpu
