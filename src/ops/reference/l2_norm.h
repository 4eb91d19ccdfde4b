// Plain loops of ops/l2_norm.h.
#pragma once

#include <cmath>
#include <complex>

#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

template <class T>
void l2_norm_forward(View<const T> x_RHK, double eps, View<T> y_RHK, View<T> inv_norm_RH) {
  const int64_t R = x_RHK.size(0), H = x_RHK.size(1), K = x_RHK.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t h = 0; h < H; ++h) {
      T sum_sq = T(eps);
      for (int64_t k = 0; k < K; ++k) sum_sq += x_RHK(r, h, k) * x_RHK(r, h, k);
      inv_norm_RH(r, h) = T(1) / std::sqrt(sum_sq);
      for (int64_t k = 0; k < K; ++k) y_RHK(r, h, k) = x_RHK(r, h, k) * inv_norm_RH(r, h);
    }
  }
}

template <class T>
void l2_norm_backward(View<const T> dy_RHK, View<const T> y_RHK, View<const T> inv_norm_RH,
                      View<T> dx_RHK) {
  const int64_t R = dy_RHK.size(0), H = dy_RHK.size(1), K = dy_RHK.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t h = 0; h < H; ++h) {
      T y_dot_dy = T(0);
      for (int64_t k = 0; k < K; ++k) y_dot_dy += y_RHK(r, h, k) * dy_RHK(r, h, k);
      for (int64_t k = 0; k < K; ++k) {
        dx_RHK(r, h, k) = inv_norm_RH(r, h) * (dy_RHK(r, h, k) - y_RHK(r, h, k) * y_dot_dy);
      }
    }
  }
}

}  // namespace deltatrain::ops::reference
