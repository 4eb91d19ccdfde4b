// Plain loops of ops/adamw.h. Step scalars are f64 whatever T is.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/adamw.h"  // StepScalars, kDecayBlock

namespace deltatrain::ops::reference {

template <class T>
double sum_of_squares(View<const T> gradient_X) {
  double sum = 0;
  for (int64_t i = 0; i < gradient_X.size(0); ++i) {
    sum += static_cast<double>(gradient_X(i)) * static_cast<double>(gradient_X(i));
  }
  return sum;
}

// `loss_sum` may be null.
inline void finish_gradient_norm(StepScalars& scalars, const double* loss_sum) {
  scalars.gradient_norm = std::sqrt(scalars.sum_of_squares);
  scalars.clip_factor = scalars.clip_grad > 0
                            ? std::min(1.0, scalars.clip_grad / (scalars.gradient_norm + 1e-6))
                            : 1.0;
  const bool finite_loss = loss_sum == nullptr || std::isfinite(*loss_sum);
  if (!std::isfinite(scalars.gradient_norm) || !finite_loss) ++scalars.skipped;
}

// compute_X, the copy in another dtype, is the caller's.
template <class T>
void adamw(View<T> parameter_X, View<const T> gradient_X, View<T> m_X, View<T> v_X,
           View<const uint8_t> decays_X, const StepScalars& scalars, double beta1, double beta2,
           double eps, double weight_decay) {
  if (!std::isfinite(scalars.gradient_norm) || scalars.skipped != 0) return;
  const double correction1 = 1 - std::pow(beta1, scalars.step);
  const double correction2 = 1 - std::pow(beta2, scalars.step);
  for (int64_t i = 0; i < parameter_X.size(0); ++i) {
    const double gradient = scalars.clip_factor * static_cast<double>(gradient_X(i));
    const double m = beta1 * static_cast<double>(m_X(i)) + (1 - beta1) * gradient;
    const double v = beta2 * static_cast<double>(v_X(i)) + (1 - beta2) * gradient * gradient;
    const double decay = decays_X(i / kDecayBlock) != 0 ? weight_decay : 0;
    const auto p = static_cast<double>(parameter_X(i));
    m_X(i) = static_cast<T>(m);
    v_X(i) = static_cast<T>(v);
    parameter_X(i) =
        static_cast<T>(p - scalars.learning_rate *
                               (m / correction1 / (std::sqrt(v / correction2) + eps) + decay * p));
  }
}

}  // namespace deltatrain::ops::reference
