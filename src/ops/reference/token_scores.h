// Plain loops of ops/token_scores.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "ops/token_scores.h"
#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

template <class T>
void token_scores(View<const T> logits_RN, View<const int32_t> rows_T, View<const int32_t> ids_T,
                  TokenScores::Rounding rounding, View<T> log_probability_T,
                  View<int32_t> is_greedy_T) {
  const auto rounded = [rounding](T x) {
    return rounding == TokenScores::Rounding::kNone
               ? x
               : static_cast<T>(static_cast<float>(BFloat16(static_cast<float>(x))));
  };
  const int64_t N = logits_RN.size(1);
  for (int64_t t = 0; t < rows_T.size(0); ++t) {
    const int64_t row = rows_T(t);
    const auto logit = [&](int64_t n) { return rounded(logits_RN(row, n)); };
    T largest = logit(0);
    for (int64_t n = 1; n < N; ++n) largest = std::max(largest, logit(n));
    T sum = 0;
    for (int64_t n = 0; n < N; ++n) sum += std::exp(logit(n) - largest);
    const T lse = largest + std::log(sum);
    if (!std::isfinite(lse)) {
      log_probability_T(t) = std::numeric_limits<T>::quiet_NaN();
      is_greedy_T(t) = 0;
      continue;
    }
    const auto log_probability = [&](int64_t n) { return rounded(logit(n) - lse); };
    int64_t first = 0;
    while (log_probability(first) < rounded(largest - lse)) ++first;
    log_probability_T(t) = log_probability(ids_T(t));
    is_greedy_T(t) = first == ids_T(t) ? 1 : 0;
  }
}

}  // namespace deltatrain::ops::reference
