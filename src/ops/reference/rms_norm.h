// Plain loops of ops/rms_norm.h.
#pragma once

#include <cmath>
#include <complex>

#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

// residual and sum are both defined or both not.
template <class T>
void rms_norm_forward(View<const T> x_RD, View<const T> residual_RD, View<const T> weight_D,
                      double eps, View<T> sum_RD, View<T> y_RD, View<T> inv_rms_R) {
  const int64_t R = x_RD.size(0), D = x_RD.size(1);
  for (int64_t r = 0; r < R; ++r) {
    T sum_sq = T(0);
    for (int64_t d = 0; d < D; ++d) {
      const T s = residual_RD.defined() ? x_RD(r, d) + residual_RD(r, d) : x_RD(r, d);
      sum_sq += s * s;
      y_RD(r, d) = s;
      if (sum_RD.defined()) sum_RD(r, d) = s;
    }
    inv_rms_R(r) = T(1) / std::sqrt(sum_sq / T(D) + T(eps));
    for (int64_t d = 0; d < D; ++d) y_RD(r, d) *= inv_rms_R(r) * weight_D(d);
  }
}

template <class T>
void rms_norm_backward(View<const T> dy_RD, View<const T> sum_RD, View<const T> weight_D,
                       View<const T> inv_rms_R, View<const T> dsum_RD, View<T> dx_RD,
                       View<T> dweight_D) {
  const int64_t R = dy_RD.size(0), D = dy_RD.size(1);
  for (int64_t r = 0; r < R; ++r) {
    const T inv_rms = inv_rms_R(r);
    T c = T(0);
    for (int64_t d = 0; d < D; ++d) {
      const T normed = sum_RD(r, d) * inv_rms;
      c += normed * weight_D(d) * dy_RD(r, d);
      dweight_D(d) += dy_RD(r, d) * normed;
    }
    c /= T(D);
    for (int64_t d = 0; d < D; ++d) {
      const T ds = inv_rms * (weight_D(d) * dy_RD(r, d) - sum_RD(r, d) * inv_rms * c);
      dx_RD(r, d) = dsum_RD.defined() ? ds + dsum_RD(r, d) : ds;
    }
  }
}

}  // namespace deltatrain::ops::reference
