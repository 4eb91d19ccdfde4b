// Plain loops of ops/linear.h.
#pragma once

#include "ops/context.h"  // GradMode

namespace deltatrain::ops::reference {

template <class T>
void linear_forward(View<const T> x_RD, View<const T> weight_XD, View<const T> bias_X,
                    GradMode y_mode, View<T> y_RX) {
  const int64_t R = x_RD.size(0), D = x_RD.size(1), X = weight_XD.size(0);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t x = 0; x < X; ++x) {
      T sum = bias_X.defined() ? bias_X(x) : T(0);
      for (int64_t d = 0; d < D; ++d) sum += x_RD(r, d) * weight_XD(x, d);
      y_RX(r, x) = y_mode == GradMode::kAccumulate ? y_RX(r, x) + sum : sum;
    }
  }
}

// Outputs that are not defined are left out, with the inputs that only they need.
template <class T>
void linear_backward(View<const T> dy_RX, View<const T> x_RD, View<const T> weight_XD,
                     GradMode dx_mode, GradMode dweight_mode, View<T> dx_RD, View<T> dweight_XD,
                     View<T> dbias_X) {
  const int64_t R = dy_RX.size(0), X = dy_RX.size(1);
  if (dx_RD.defined()) {
    const int64_t D = dx_RD.size(1);
    for (int64_t r = 0; r < R; ++r) {
      if (dx_mode == GradMode::kOverwrite) {
        for (int64_t d = 0; d < D; ++d) dx_RD(r, d) = T(0);
      }
      for (int64_t x = 0; x < X; ++x) {
        for (int64_t d = 0; d < D; ++d) dx_RD(r, d) += dy_RX(r, x) * weight_XD(x, d);
      }
    }
  }
  if (dweight_XD.defined()) {
    const int64_t D = dweight_XD.size(1);
    for (int64_t x = 0; x < X; ++x) {
      if (dweight_mode == GradMode::kOverwrite) {
        for (int64_t d = 0; d < D; ++d) dweight_XD(x, d) = T(0);
      }
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t d = 0; d < D; ++d) dweight_XD(x, d) += dy_RX(r, x) * x_RD(r, d);
      }
    }
  }
  if (dbias_X.defined()) {
    for (int64_t x = 0; x < X; ++x) {
      T sum = dweight_mode == GradMode::kAccumulate ? dbias_X(x) : T(0);
      for (int64_t r = 0; r < R; ++r) sum += dy_RX(r, x);
      dbias_X(x) = sum;
    }
  }
}

}  // namespace deltatrain::ops::reference
