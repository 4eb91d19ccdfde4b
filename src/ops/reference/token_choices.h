// Plain loops of ops/token_choices.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/token_choices.h"
#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

// What a token weighs in a draw, 2^40 for the most likely.
inline uint64_t choice_weight(double logit, double largest, double temperature) {
  const double inverse = std::min(1 / temperature, std::numeric_limits<double>::max());
  return static_cast<uint64_t>(std::exp((logit - largest) * inverse) * 0x1p40);
}

// The first `count` tokens of the order, or all where there are fewer.
template <class T>
std::vector<int32_t> most_likely(const T* logits, int64_t N, int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(N));
  std::iota(order.begin(), order.end(), 0);
  const auto first = [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (count >= N) {
    std::sort(order.begin(), order.end(), first);
    return order;
  }
  std::partial_sort(order.begin(), order.begin() + count, order.end(), first);
  order.resize(static_cast<size_t>(count));
  return order;
}

// How many of `order`, whose weights sum to `all` or to less if it is the beginning of an order, suffice for top_p; one
// more than it has where it does not.
template <class Weight>
size_t count_kept(const std::vector<int32_t>& order, uint64_t all, double top_p,
                  const Weight& weight) {
  const double wanted = top_p * static_cast<double>(all);
  uint64_t sum = 0;
  for (size_t count = 0; count < order.size();) {
    sum += weight(order[count++]);
    if (static_cast<double>(sum) >= wanted) return count;
  }
  return order.size() + 1;
}

// The one of `kept`, ids that rise, that `uniform` decides for.
template <class Weight>
int32_t pick(const std::vector<int32_t>& kept, double uniform, const Weight& weight) {
  uint64_t sum = 0;
  for (const int32_t id : kept) sum += weight(id);
  const auto target = std::min(static_cast<uint64_t>(uniform * static_cast<double>(sum)), sum - 1);
  uint64_t passed = 0;
  for (const int32_t id : kept) {
    passed += weight(id);
    if (passed > target) return id;
  }
  return kept.back();
}

// The token that a row of numbers with a finite largest one gives.
template <class T>
int32_t draw(const T* logits, int64_t N, double temperature, int64_t top_k, double top_p,
             double uniform) {
  const T* const best = std::max_element(logits, logits + N);
  if (temperature <= 0) return static_cast<int32_t>(best - logits);
  const auto weight = [&](int32_t id) {
    return choice_weight(static_cast<double>(logits[id]), static_cast<double>(*best), temperature);
  };
  std::vector<int32_t> kept;
  if (top_k == 0 && top_p >= 1) {
    kept.resize(static_cast<size_t>(N));
    std::iota(kept.begin(), kept.end(), 0);
    return pick(kept, uniform, weight);
  }
  kept = most_likely(logits, N, top_k == 0 ? N : top_k);
  if (top_p < 1) {
    uint64_t all = 0;
    for (const int32_t id : kept) all += weight(id);
    kept.resize(count_kept(kept, all, top_p, weight));
  }
  std::sort(kept.begin(), kept.end());
  return pick(kept, uniform, weight);
}

template <class T>
void token_choices(View<const T> logits_RN, View<const int32_t> given_R,
                   View<const double> temperature_R, View<const double> top_p_R,
                   View<const double> uniform_R, View<const int32_t> top_k_R,
                   View<const int32_t> num_top_R, View<int32_t> id_R, View<T> logit_R,
                   View<T> lse_R, View<int32_t> top_ids_RX, View<T> top_logits_RX) {
  const int64_t N = logits_RN.size(1), X = top_ids_RX.size(1);
  std::vector<T> row(static_cast<size_t>(N));
  for (int64_t r = 0; r < logits_RN.size(0); ++r) {
    bool is_number = true;
    for (int64_t n = 0; n < N; ++n) {
      row[static_cast<size_t>(n)] = logits_RN(r, n);
      is_number = is_number && !std::isnan(logits_RN(r, n));
    }
    const T largest = *std::max_element(row.begin(), row.end());
    is_number = is_number && std::isfinite(largest);
    for (int64_t i = 0; i < X; ++i) {
      top_ids_RX(r, i) = -1;
      top_logits_RX(r, i) = 0;
    }
    id_R(r) = -1;
    logit_R(r) = lse_R(r) = std::numeric_limits<T>::quiet_NaN();
    if (!is_number) continue;
    id_R(r) = given_R(r) >= 0
                  ? given_R(r)
                  : draw(row.data(), N, temperature_R(r), top_k_R(r), top_p_R(r), uniform_R(r));
    logit_R(r) = row[static_cast<size_t>(id_R(r))];
    T sum = 0;
    for (const T x : row) sum += std::exp(x - largest);
    lse_R(r) = largest + std::log(sum);
    int64_t at = 0;
    for (const int32_t id : most_likely(row.data(), N, num_top_R(r))) {
      top_ids_RX(r, at) = id;
      top_logits_RX(r, at++) = row[static_cast<size_t>(id)];
    }
  }
}

}  // namespace deltatrain::ops::reference
