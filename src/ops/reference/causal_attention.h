// Plain loops of ops/causal_attention.h.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/context.h"  // Sequences
#include "ops/reference/scalar.h"

namespace deltatrain::ops::reference {

// One query against `num_keys` keys; key(j, k) and value(j, v) read them. Returns the log-sum-exp.
template <class T, class Key, class Value>
T attend(View<const T> q_RHK, int64_t r, int64_t h, int64_t num_keys, double scale, const Key& key,
         const Value& value, View<T> o_RHV) {
  const int64_t K = q_RHK.size(2), V = o_RHV.size(2);
  std::vector<T> scores(static_cast<size_t>(num_keys));
  for (int64_t j = 0; j < num_keys; ++j) {
    T dot = T(0);
    for (int64_t k = 0; k < K; ++k) dot += q_RHK(r, h, k) * key(j, k);
    scores[static_cast<size_t>(j)] = T(scale) * dot;
  }
  auto largest = real_part(scores[0]);
  for (const T& score : scores) largest = std::max(largest, real_part(score));
  T sum = T(0);
  for (T& score : scores) {
    score = std::exp(score - T(largest));
    sum += score;
  }
  for (int64_t v = 0; v < V; ++v) {
    T weighted = T(0);
    for (int64_t j = 0; j < num_keys; ++j) weighted += scores[static_cast<size_t>(j)] * value(j, v);
    o_RHV(r, h, v) = weighted / sum;
  }
  return T(largest) + std::log(sum);
}

template <class T>
void causal_attention_forward(View<const T> q_RHK, View<const T> k_RHK, View<const T> v_RHV,
                              const Sequences& sequences, double scale, View<T> o_RHV,
                              View<T> lse_RH, View<T> k_cache_SXHK, View<T> v_cache_SXHV,
                              View<const int32_t> cache_lengths_S) {
  const int64_t H = q_RHK.size(1), K = q_RHK.size(2), V = v_RHV.size(2);
  for (int64_t s = 0; s < sequences.num(); ++s) {
    const int64_t begin = sequences.begin(s);
    for (int64_t r = begin; r < sequences.end(s); ++r) {
      for (int64_t h = 0; h < H; ++h) {
        T lse;
        if (k_cache_SXHK.defined()) {
          const int64_t own = cache_lengths_S(s) + r - begin;
          for (int64_t k = 0; k < K; ++k) k_cache_SXHK(s, own, h, k) = k_RHK(r, h, k);
          for (int64_t v = 0; v < V; ++v) v_cache_SXHV(s, own, h, v) = v_RHV(r, h, v);
          lse = attend<T>(
              q_RHK, r, h, own + 1, scale,
              [&](int64_t j, int64_t k) { return k_cache_SXHK(s, j, h, k); },
              [&](int64_t j, int64_t v) { return v_cache_SXHV(s, j, h, v); }, o_RHV);
        } else {
          lse = attend<T>(
              q_RHK, r, h, r - begin + 1, scale,
              [&](int64_t j, int64_t k) { return k_RHK(begin + j, h, k); },
              [&](int64_t j, int64_t v) { return v_RHV(begin + j, h, v); }, o_RHV);
        }
        if (lse_RH.defined()) lse_RH(r, h) = lse;
      }
    }
  }
}

template <class T>
void causal_attention_backward(View<const T> do_RHV, View<const T> q_RHK, View<const T> k_RHK,
                               View<const T> v_RHV, View<const T> o_RHV, View<const T> lse_RH,
                               const Sequences& sequences, double scale, View<T> dq_RHK,
                               View<T> dk_RHK, View<T> dv_RHV) {
  const int64_t R = q_RHK.size(0), H = q_RHK.size(1), K = q_RHK.size(2), V = v_RHV.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t k = 0; k < K; ++k) dq_RHK(r, h, k) = dk_RHK(r, h, k) = T(0);
      for (int64_t v = 0; v < V; ++v) dv_RHV(r, h, v) = T(0);
    }
  }
  for (int64_t s = 0; s < sequences.num(); ++s) {
    for (int64_t i = sequences.begin(s); i < sequences.end(s); ++i) {
      for (int64_t h = 0; h < H; ++h) {
        T do_dot_o = T(0);
        for (int64_t v = 0; v < V; ++v) do_dot_o += do_RHV(i, h, v) * o_RHV(i, h, v);
        for (int64_t j = sequences.begin(s); j <= i; ++j) {
          T score = T(0);
          for (int64_t k = 0; k < K; ++k) score += q_RHK(i, h, k) * k_RHK(j, h, k);
          const T p = std::exp(T(scale) * score - lse_RH(i, h));
          T dp = T(0);
          for (int64_t v = 0; v < V; ++v) {
            dp += do_RHV(i, h, v) * v_RHV(j, h, v);
            dv_RHV(j, h, v) += p * do_RHV(i, h, v);
          }
          const T ds = T(scale) * p * (dp - do_dot_o);
          for (int64_t k = 0; k < K; ++k) {
            dq_RHK(i, h, k) += ds * k_RHK(j, h, k);
            dk_RHK(j, h, k) += ds * q_RHK(i, h, k);
          }
        }
      }
    }
  }
}

}  // namespace deltatrain::ops::reference
