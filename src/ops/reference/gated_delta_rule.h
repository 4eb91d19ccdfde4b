// Plain loops of ops/gated_delta_rule.h: the recurrence over tokens, which defines the op.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "ops/context.h"  // Sequences

namespace deltatrain::ops::reference {

// The inputs, as in GatedDeltaRuleForward.
template <class T>
struct DeltaInputs {
  View<const T> q_RHK;
  View<const T> k_RHK;
  View<const T> v_RGV;
  View<const T> g_RGK;
  View<const T> beta_RG;
  Sequences sequences;
  View<const T> initial_state_SGKV;  // optional
  double scale = 1;

  int64_t H() const { return q_RHK.size(1); }
  int64_t K() const { return q_RHK.size(2); }
  int64_t G() const { return v_RGV.size(1); }
  int64_t V() const { return v_RGV.size(2); }
  int64_t qk_head(int64_t g) const { return g / (G() / H()); }
  // Log decay of key channel k, also where one number serves all channels.
  T log_decay(int64_t r, int64_t g, int64_t k) const {
    return g_RGK(r, g, g_RGK.size(2) == 1 ? 0 : k);
  }
};

// The gradients, as in GatedDeltaRuleBackward.
template <class T>
struct DeltaGradients {
  View<T> dq_RHK;
  View<T> dk_RHK;
  View<T> dv_RGV;
  View<T> dg_RGK;
  View<T> dbeta_RG;
  View<T> d_initial_state_SGKV;  // optional
};

template <class T>
std::vector<T> delta_initial_state(const DeltaInputs<T>& in, int64_t s, int64_t g) {
  const int64_t K = in.K(), V = in.V();
  std::vector<T> state_KV(static_cast<size_t>(K * V), T(0));
  if (in.initial_state_SGKV.defined()) {
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t v = 0; v < V; ++v)
        state_KV[static_cast<size_t>(k * V + v)] = in.initial_state_SGKV(s, g, k, v);
    }
  }
  return state_KV;
}

// One step of value head g on row r. `state_KV` goes from before to after; `decayed_KV` (K x V) and
// `d_V` (V) receive the values in between.
template <class T>
void delta_step(const DeltaInputs<T>& in, int64_t r, int64_t g, T* state_KV, T* decayed_KV,
                T* d_V) {
  const int64_t K = in.K(), V = in.V(), h = in.qk_head(g);
  for (int64_t v = 0; v < V; ++v) d_V[v] = in.v_RGV(r, g, v);
  for (int64_t k = 0; k < K; ++k) {
    const T decay = std::exp(in.log_decay(r, g, k));
    const T key = in.k_RHK(r, h, k);
    for (int64_t v = 0; v < V; ++v) {
      decayed_KV[k * V + v] = decay * state_KV[k * V + v];
      d_V[v] -= decayed_KV[k * V + v] * key;
    }
  }
  for (int64_t v = 0; v < V; ++v) d_V[v] *= in.beta_RG(r, g);
  for (int64_t k = 0; k < K; ++k) {
    const T key = in.k_RHK(r, h, k);
    for (int64_t v = 0; v < V; ++v) state_KV[k * V + v] = decayed_KV[k * V + v] + key * d_V[v];
  }
}

// final_state_SGKV may be undefined.
template <class T>
void gated_delta_rule_forward(const DeltaInputs<T>& in, View<T> o_RGV, View<T> final_state_SGKV) {
  const int64_t K = in.K(), V = in.V();
  std::vector<T> decayed(static_cast<size_t>(K * V));
  std::vector<T> d(static_cast<size_t>(V));
  for (int64_t s = 0; s < in.sequences.num(); ++s) {
    for (int64_t g = 0; g < in.G(); ++g) {
      std::vector<T> state = delta_initial_state(in, s, g);
      for (int64_t r = in.sequences.begin(s); r < in.sequences.end(s); ++r) {
        delta_step(in, r, g, state.data(), decayed.data(), d.data());
        for (int64_t v = 0; v < V; ++v) o_RGV(r, g, v) = T(0);
        for (int64_t k = 0; k < K; ++k) {
          const T query = T(in.scale) * in.q_RHK(r, in.qk_head(g), k);
          for (int64_t v = 0; v < V; ++v)
            o_RGV(r, g, v) += state[static_cast<size_t>(k * V + v)] * query;
        }
      }
      if (!final_state_SGKV.defined()) continue;
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t v = 0; v < V; ++v)
          final_state_SGKV(s, g, k, v) = state[static_cast<size_t>(k * V + v)];
      }
    }
  }
}

// Keeps the state before every token of one head,
// then walks back. d_final_state_SGKV may be undefined.
template <class T>
void gated_delta_rule_backward(const DeltaInputs<T>& in, View<const T> do_RGV,
                               View<const T> d_final_state_SGKV, const DeltaGradients<T>& out) {
  const int64_t R = in.q_RHK.size(0), H = in.H(), K = in.K(), V = in.V();
  const auto KV = static_cast<size_t>(K * V);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t k = 0; k < K; ++k) out.dq_RHK(r, h, k) = out.dk_RHK(r, h, k) = T(0);
    }
  }
  std::vector<T> decayed(KV);
  std::vector<T> d(static_cast<size_t>(V));
  std::vector<T> dd(static_cast<size_t>(V));
  std::vector<T> dstate(KV);
  for (int64_t s = 0; s < in.sequences.num(); ++s) {
    const int64_t begin = in.sequences.begin(s), length = in.sequences.length(s);
    std::vector<T> before(KV * static_cast<size_t>(length));
    for (int64_t g = 0; g < in.G(); ++g) {
      const int64_t h = in.qk_head(g);
      std::vector<T> state = delta_initial_state(in, s, g);
      for (int64_t t = 0; t < length; ++t) {
        std::copy(state.begin(), state.end(), before.begin() + t * K * V);
        delta_step(in, begin + t, g, state.data(), decayed.data(), d.data());
      }
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t v = 0; v < V; ++v) {
          dstate[static_cast<size_t>(k * V + v)] =
              d_final_state_SGKV.defined() ? d_final_state_SGKV(s, g, k, v) : T(0);
        }
      }
      for (int64_t t = length - 1; t >= 0; --t) {
        const int64_t r = begin + t;
        const T beta = in.beta_RG(r, g);
        std::copy_n(before.begin() + t * K * V, KV, state.begin());
        delta_step(in, r, g, state.data(), decayed.data(), d.data());
        // o = scale S^T q, then S = decayed + k d^T.
        std::fill(dd.begin(), dd.end(), T(0));
        for (int64_t k = 0; k < K; ++k) {
          const T query = T(in.scale) * in.q_RHK(r, h, k);
          const T key = in.k_RHK(r, h, k);
          T dq = T(0), dk = T(0);
          for (int64_t v = 0; v < V; ++v) {
            const auto kv = static_cast<size_t>(k * V + v);
            dq += state[kv] * do_RGV(r, g, v);
            dstate[kv] += query * do_RGV(r, g, v);
            dk += dstate[kv] * d[static_cast<size_t>(v)];
            dd[static_cast<size_t>(v)] += dstate[kv] * key;
          }
          out.dq_RHK(r, h, k) += T(in.scale) * dq;
          out.dk_RHK(r, h, k) += dk;
        }
        // d = beta (v - decayed^T k). The difference
        // is made again rather than d / beta, for beta = 0.
        T dbeta = T(0);
        for (int64_t v = 0; v < V; ++v) {
          T difference = in.v_RGV(r, g, v);
          for (int64_t k = 0; k < K; ++k)
            difference -= decayed[static_cast<size_t>(k * V + v)] * in.k_RHK(r, h, k);
          dbeta += dd[static_cast<size_t>(v)] * difference;
          dd[static_cast<size_t>(v)] *= beta;
          out.dv_RGV(r, g, v) = dd[static_cast<size_t>(v)];
        }
        out.dbeta_RG(r, g) = dbeta;
        // decayed = diag(exp(g)) S_before.
        T dg_sum = T(0);
        for (int64_t k = 0; k < K; ++k) {
          const T decay = std::exp(in.log_decay(r, g, k));
          const T key = in.k_RHK(r, h, k);
          T dk = T(0), dg = T(0);
          for (int64_t v = 0; v < V; ++v) {
            const auto kv = static_cast<size_t>(k * V + v);
            dk -= decayed[kv] * dd[static_cast<size_t>(v)];
            dstate[kv] -= key * dd[static_cast<size_t>(v)];
            dg += dstate[kv] * decayed[kv];
            dstate[kv] *= decay;
          }
          out.dk_RHK(r, h, k) += dk;
          if (out.dg_RGK.size(2) == 1) {
            dg_sum += dg;
          } else {
            out.dg_RGK(r, g, k) = dg;
          }
        }
        if (out.dg_RGK.size(2) == 1) out.dg_RGK(r, g, 0) = dg_sum;
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
