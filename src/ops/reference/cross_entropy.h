// Plain loops of ops/cross_entropy.h.
#pragma once

#include <algorithm>

#include "ops/cross_entropy.h"  // kIgnoredLabel
#include "ops/reference/scalar.h"

namespace deltatrain::ops::reference {

template <class T>
void cross_entropy(View<T> logits_RN, View<const int32_t> labels_R, double grad_scale,
                   CrossEntropy::Gradient gradient, View<T> loss_R, View<T> lse_R) {
  const int64_t R = logits_RN.size(0), N = logits_RN.size(1);
  for (int64_t r = 0; r < R; ++r) {
    auto largest = real_part(logits_RN(r, 0));
    for (int64_t n = 1; n < N; ++n) largest = std::max(largest, real_part(logits_RN(r, n)));
    T sum = T(0);
    for (int64_t n = 0; n < N; ++n) sum += std::exp(logits_RN(r, n) - T(largest));
    const T lse = T(largest) + std::log(sum);
    const int32_t label = labels_R(r);
    if (lse_R.defined()) lse_R(r) = lse;
    loss_R(r) = label == kIgnoredLabel ? T(0) : lse - logits_RN(r, label);
    if (gradient == CrossEntropy::Gradient::kNone) continue;
    for (int64_t n = 0; n < N; ++n) {
      const T probability = std::exp(logits_RN(r, n) - lse);
      logits_RN(r, n) = label == kIgnoredLabel
                            ? T(0)
                            : (probability - (n == label ? T(1) : T(0))) * T(grad_scale);
    }
  }
}

}  // namespace deltatrain::ops::reference
