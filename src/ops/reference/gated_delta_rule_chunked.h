// The delta rule in chunks of C tokens: the form that backends make fast, as plain loops.
//
// One chunk, one value head, rows i and j of the chunk, S0 the state that enters, G the inclusive
// cumulative log decay inside the chunk, E_ij = exp(G_i - G_j) per key channel (later index first:
// never above 1):
//
//   L_ij = beta_i sum_k k_i k_j E_ij  (i > j)        P_ij = scale sum_k q_i k_j E_ij  (i >= j)
//   Y    = v - (k exp(G)) S0                         U = (I + L)^-1 (beta Y)
//   O    = scale (q exp(G)) S0 + P U                 S = exp(G_C) S0 + (k exp(G_C - G))^T U
//
// U holds the corrected values, the d of every token. Derivation: docs/maths/gated_delta_rule.md.
// The recurrence in gated_delta_rule.h is the definition; a test keeps both equal.
#pragma once

#include "ops/reference/gated_delta_rule.h"

namespace deltatrain::ops::reference {

// What forward computes in one chunk of one head
// and backward needs again. Rows are tokens of the chunk.
template <class T>
struct DeltaChunk {
  int64_t begin = 0;     // first row of the chunk
  int64_t length = 0;    // C, or fewer at the end of a sequence
  std::vector<T> G_CK;   // cumulative log decay
  std::vector<T> KK_CC;  // sum_k k_i k_j E_ij for i > j, without beta
  std::vector<T> P_CC;   // for i >= j
  std::vector<T> Y_CV;
  std::vector<T> U_CV;

  size_t at(int64_t row, int64_t column, int64_t width) const {
    return static_cast<size_t>(row * width + column);
  }
};

template <class T>
T chunk_decay(const DeltaChunk<T>& chunk, int64_t later, int64_t earlier, int64_t k, int64_t K) {
  return std::exp(chunk.G_CK[chunk.at(later, k, K)] - chunk.G_CK[chunk.at(earlier, k, K)]);
}

// Everything that does not leave the chunk.
template <class T>
DeltaChunk<T> make_delta_chunk(const DeltaInputs<T>& in, int64_t begin, int64_t length, int64_t g,
                               const std::vector<T>& state_KV) {
  const int64_t K = in.K(), V = in.V(), h = in.qk_head(g);
  DeltaChunk<T> c;
  c.begin = begin;
  c.length = length;
  c.G_CK.assign(static_cast<size_t>(length * K), T(0));
  c.KK_CC.assign(static_cast<size_t>(length * length), T(0));
  c.P_CC.assign(static_cast<size_t>(length * length), T(0));
  c.Y_CV.assign(static_cast<size_t>(length * V), T(0));
  c.U_CV.assign(static_cast<size_t>(length * V), T(0));
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t k = 0; k < K; ++k) {
      c.G_CK[c.at(i, k, K)] =
          in.log_decay(begin + i, g, k) + (i > 0 ? c.G_CK[c.at(i - 1, k, K)] : T(0));
    }
    for (int64_t j = 0; j <= i; ++j) {
      T kk = T(0), qk = T(0);
      for (int64_t k = 0; k < K; ++k) {
        const T key = in.k_RHK(begin + j, h, k) * chunk_decay(c, i, j, k, K);
        kk += in.k_RHK(begin + i, h, k) * key;
        qk += in.q_RHK(begin + i, h, k) * key;
      }
      if (j < i) c.KK_CC[c.at(i, j, length)] = kk;
      c.P_CC[c.at(i, j, length)] = T(in.scale) * qk;
    }
    for (int64_t v = 0; v < V; ++v) {
      T y = in.v_RGV(begin + i, g, v);
      for (int64_t k = 0; k < K; ++k) {
        y -= in.k_RHK(begin + i, h, k) * std::exp(c.G_CK[c.at(i, k, K)]) * state_KV[c.at(k, v, V)];
      }
      c.Y_CV[c.at(i, v, V)] = y;
      for (int64_t j = 0; j < i; ++j) y -= c.KK_CC[c.at(i, j, length)] * c.U_CV[c.at(j, v, V)];
      c.U_CV[c.at(i, v, V)] = in.beta_RG(begin + i, g) * y;
    }
  }
  return c;
}

// state_KV: from the state that enters the chunk to the one that leaves it.
template <class T>
void advance_delta_state(const DeltaInputs<T>& in, const DeltaChunk<T>& c, int64_t g,
                         std::vector<T>& state_KV) {
  const int64_t K = in.K(), V = in.V(), h = in.qk_head(g), last = c.length - 1;
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t v = 0; v < V; ++v) {
      T sum = std::exp(c.G_CK[c.at(last, k, K)]) * state_KV[c.at(k, v, V)];
      for (int64_t i = 0; i < c.length; ++i) {
        sum += in.k_RHK(c.begin + i, h, k) * chunk_decay(c, last, i, k, K) * c.U_CV[c.at(i, v, V)];
      }
      state_KV[c.at(k, v, V)] = sum;
    }
  }
}

template <class T>
void gated_delta_rule_chunked_forward(const DeltaInputs<T>& in, int64_t C, View<T> o_RGV,
                                      View<T> final_state_SGKV) {
  const int64_t K = in.K(), V = in.V();
  for (int64_t s = 0; s < in.sequences.num(); ++s) {
    for (int64_t g = 0; g < in.G(); ++g) {
      const int64_t h = in.qk_head(g);
      std::vector<T> state = delta_initial_state(in, s, g);
      for (int64_t begin = in.sequences.begin(s); begin < in.sequences.end(s); begin += C) {
        const DeltaChunk<T> c =
            make_delta_chunk(in, begin, std::min(C, in.sequences.end(s) - begin), g, state);
        for (int64_t i = 0; i < c.length; ++i) {
          for (int64_t v = 0; v < V; ++v) {
            T o = T(0);
            for (int64_t k = 0; k < K; ++k) {
              o += T(in.scale) * in.q_RHK(begin + i, h, k) * std::exp(c.G_CK[c.at(i, k, K)]) *
                   state[c.at(k, v, V)];
            }
            for (int64_t j = 0; j <= i; ++j)
              o += c.P_CC[c.at(i, j, c.length)] * c.U_CV[c.at(j, v, V)];
            o_RGV(begin + i, g, v) = o;
          }
        }
        advance_delta_state(in, c, g, state);
      }
      if (!final_state_SGKV.defined()) continue;
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t v = 0; v < V; ++v)
          final_state_SGKV(s, g, k, v) = state[static_cast<size_t>(k * V + v)];
      }
    }
  }
}

// Gradients of one chunk. `state_KV` enters the chunk, `dstate_KV` is the gradient of the state
// that leaves it and becomes that of `state_KV`:
//
//   dU = P^T dO + (k exp(G_C - G)) dS        dR = (I + L)^-T dU        dv = beta dR
//   dP = tril(dO U^T)                        dL = -stril(dR U^T)
//   dG = q dq + k dk(row role) - k dk(column role), without the i = j terms of P, which cancel
template <class T>
void gated_delta_rule_chunk_backward(const DeltaInputs<T>& in, const DeltaChunk<T>& c, int64_t g,
                                     const std::vector<T>& state_KV, View<const T> do_RGV,
                                     std::vector<T>& dstate_KV, const DeltaGradients<T>& out) {
  const int64_t K = in.K(), V = in.V(), h = in.qk_head(g), C = c.length, last = c.length - 1;
  const T scale = T(in.scale);
  std::vector<T> dR(static_cast<size_t>(C * V)), dP(static_cast<size_t>(C * C), T(0)), dL(dP);
  for (int64_t v = 0; v < V; ++v) {
    for (int64_t i = last; i >= 0; --i) {
      T dn = T(0);
      for (int64_t m = i; m < C; ++m) dn += c.P_CC[c.at(m, i, C)] * do_RGV(c.begin + m, g, v);
      for (int64_t k = 0; k < K; ++k) {
        dn +=
            in.k_RHK(c.begin + i, h, k) * chunk_decay(c, last, i, k, K) * dstate_KV[c.at(k, v, V)];
      }
      for (int64_t m = i + 1; m < C; ++m) {
        dn -= in.beta_RG(c.begin + m, g) * c.KK_CC[c.at(m, i, C)] * dR[c.at(m, v, V)];
      }
      dR[c.at(i, v, V)] = dn;
      out.dv_RGV(c.begin + i, g, v) = in.beta_RG(c.begin + i, g) * dn;
    }
  }
  for (int64_t i = 0; i < C; ++i) {
    T dbeta = T(0);
    for (int64_t v = 0; v < V; ++v) dbeta += dR[c.at(i, v, V)] * c.Y_CV[c.at(i, v, V)];
    for (int64_t j = 0; j <= i; ++j) {
      for (int64_t v = 0; v < V; ++v) {
        dP[c.at(i, j, C)] += do_RGV(c.begin + i, g, v) * c.U_CV[c.at(j, v, V)];
        if (j < i) dL[c.at(i, j, C)] -= dR[c.at(i, v, V)] * c.U_CV[c.at(j, v, V)];
      }
      dbeta += dL[c.at(i, j, C)] * c.KK_CC[c.at(i, j, C)];
    }
    out.dbeta_RG(c.begin + i, g) = dbeta;
  }
  std::vector<T> dg_sum(static_cast<size_t>(C), T(0));
  for (int64_t k = 0; k < K; ++k) {
    T state_part = T(0);  // what the last row's G gains from the state that leaves
    std::vector<T> dG(static_cast<size_t>(C), T(0));
    for (int64_t i = 0; i < C; ++i) {
      const T from_start = std::exp(c.G_CK[c.at(i, k, K)]);
      const T to_end = chunk_decay(c, last, i, k, K);
      T dq = T(0), row = T(0), state_column = T(0);
      for (int64_t v = 0; v < V; ++v) {
        dq += do_RGV(c.begin + i, g, v) * state_KV[c.at(k, v, V)];
        row -= out.dv_RGV(c.begin + i, g, v) * state_KV[c.at(k, v, V)];
        state_column += c.U_CV[c.at(i, v, V)] * dstate_KV[c.at(k, v, V)];
      }
      dq *= scale * from_start;
      row *= from_start;
      state_column *= to_end;
      T column = state_column;
      const T beta = in.beta_RG(c.begin + i, g);
      for (int64_t j = 0; j < i; ++j) {
        const T key = in.k_RHK(c.begin + j, h, k) * chunk_decay(c, i, j, k, K);
        dq += scale * dP[c.at(i, j, C)] * key;
        row += beta * dL[c.at(i, j, C)] * key;
      }
      for (int64_t m = i + 1; m < C; ++m) {
        const T later =
            scale * dP[c.at(m, i, C)] * in.q_RHK(c.begin + m, h, k) +
            in.beta_RG(c.begin + m, g) * dL[c.at(m, i, C)] * in.k_RHK(c.begin + m, h, k);
        column += later * chunk_decay(c, m, i, k, K);
      }
      const T q = in.q_RHK(c.begin + i, h, k);
      const T key = in.k_RHK(c.begin + i, h, k);
      dG[static_cast<size_t>(i)] = q * dq + key * row - key * column;
      state_part += key * state_column;
      out.dq_RHK(c.begin + i, h, k) += dq + scale * dP[c.at(i, i, C)] * key;
      out.dk_RHK(c.begin + i, h, k) += row + column + scale * dP[c.at(i, i, C)] * q;
    }
    T kept = T(0);
    for (int64_t v = 0; v < V; ++v) kept += state_KV[c.at(k, v, V)] * dstate_KV[c.at(k, v, V)];
    dG[static_cast<size_t>(last)] += state_part + std::exp(c.G_CK[c.at(last, k, K)]) * kept;
    T later = T(0);
    for (int64_t i = last; i >= 0; --i) {
      later += dG[static_cast<size_t>(i)];
      if (out.dg_RGK.size(2) == 1) {
        dg_sum[static_cast<size_t>(i)] += later;
      } else {
        out.dg_RGK(c.begin + i, g, k) = later;
      }
    }
  }
  for (int64_t i = 0; i < C && out.dg_RGK.size(2) == 1; ++i) {
    out.dg_RGK(c.begin + i, g, 0) = dg_sum[static_cast<size_t>(i)];
  }
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t v = 0; v < V; ++v) {
      T sum = std::exp(c.G_CK[c.at(last, k, K)]) * dstate_KV[c.at(k, v, V)];
      for (int64_t i = 0; i < C; ++i) {
        const T from_start = std::exp(c.G_CK[c.at(i, k, K)]);
        sum += from_start * (scale * in.q_RHK(c.begin + i, h, k) * do_RGV(c.begin + i, g, v) -
                             in.k_RHK(c.begin + i, h, k) * out.dv_RGV(c.begin + i, g, v));
      }
      dstate_KV[c.at(k, v, V)] = sum;
    }
  }
}

template <class T>
void gated_delta_rule_chunked_backward(const DeltaInputs<T>& in, int64_t C, View<const T> do_RGV,
                                       View<const T> d_final_state_SGKV,
                                       const DeltaGradients<T>& out) {
  const int64_t R = in.q_RHK.size(0), H = in.H(), K = in.K(), V = in.V();
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t k = 0; k < K; ++k) out.dq_RHK(r, h, k) = out.dk_RHK(r, h, k) = T(0);
    }
  }
  for (int64_t s = 0; s < in.sequences.num(); ++s) {
    for (int64_t g = 0; g < in.G(); ++g) {
      std::vector<DeltaChunk<T>> chunks;
      std::vector<std::vector<T>> states = {delta_initial_state(in, s, g)};  // entering each chunk
      for (int64_t begin = in.sequences.begin(s); begin < in.sequences.end(s); begin += C) {
        chunks.push_back(make_delta_chunk(in, begin, std::min(C, in.sequences.end(s) - begin), g,
                                          states.back()));
        std::vector<T> next = states.back();
        advance_delta_state(in, chunks.back(), g, next);
        states.push_back(std::move(next));
      }
      std::vector<T> dstate(static_cast<size_t>(K * V), T(0));
      for (int64_t k = 0; k < K && d_final_state_SGKV.defined(); ++k) {
        for (int64_t v = 0; v < V; ++v)
          dstate[static_cast<size_t>(k * V + v)] = d_final_state_SGKV(s, g, k, v);
      }
      for (size_t j = chunks.size(); j-- > 0;) {
        gated_delta_rule_chunk_backward(in, chunks[j], g, states[j], do_RGV, dstate, out);
      }
      if (!out.d_initial_state_SGKV.defined()) continue;
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t v = 0; v < V; ++v) {
          out.d_initial_state_SGKV(s, g, k, v) = dstate[static_cast<size_t>(k * V + v)];
        }
      }
    }
  }
}

}  // namespace deltatrain::ops::reference
