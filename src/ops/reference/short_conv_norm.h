// Plain loops of ops/short_conv_norm.h.
#pragma once

#include <vector>

#include "ops/reference/l2_norm.h"
#include "ops/reference/short_conv.h"

namespace deltatrain::ops::reference {

template <class T>
void short_conv_norm_forward(View<const T> x_RX, View<const T> weight_XW,
                             const Sequences& sequences, View<const T> initial_history_SWX,
                             View<T> final_history_SWX, double eps, View<T> q_RHK, View<T> k_RHK,
                             View<T> q_inv_norm_RH, View<T> k_inv_norm_RH) {
  const int64_t R = q_RHK.size(0), H = q_RHK.size(1), K = q_RHK.size(2), X = 2 * H * K;
  std::vector<T> u(static_cast<size_t>(R * X)), half(static_cast<size_t>(R * H * K));
  short_conv_forward<T>(x_RX, weight_XW, sequences, initial_history_SWX, final_history_SWX,
                        View<T>(u.data(), {R, X}));
  for (const int64_t first : {int64_t{0}, H * K}) {
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t c = 0; c < H * K; ++c)
        half[static_cast<size_t>(r * H * K + c)] = u[static_cast<size_t>(r * X + first + c)];
    }
    l2_norm_forward<T>(View<const T>(half.data(), {R, H, K}), eps, first == 0 ? q_RHK : k_RHK,
                       first == 0 ? q_inv_norm_RH : k_inv_norm_RH);
  }
}

template <class T>
void short_conv_norm_backward(View<const T> dq_RHK, View<const T> dk_RHK, View<const T> q_RHK,
                              View<const T> k_RHK, View<const T> q_inv_norm_RH,
                              View<const T> k_inv_norm_RH, View<const T> x_RX,
                              View<const T> weight_XW, const Sequences& sequences, View<T> dx_RX,
                              View<T> dweight_XW) {
  const int64_t R = q_RHK.size(0), H = q_RHK.size(1), K = q_RHK.size(2), X = 2 * H * K;
  std::vector<T> du(static_cast<size_t>(R * X)), half(static_cast<size_t>(R * H * K));
  for (const int64_t first : {int64_t{0}, H * K}) {
    l2_norm_backward<T>(first == 0 ? dq_RHK : dk_RHK, first == 0 ? q_RHK : k_RHK,
                        first == 0 ? q_inv_norm_RH : k_inv_norm_RH,
                        View<T>(half.data(), {R, H, K}));
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t c = 0; c < H * K; ++c)
        du[static_cast<size_t>(r * X + first + c)] = half[static_cast<size_t>(r * H * K + c)];
    }
  }
  short_conv_backward<T>(View<const T>(du.data(), {R, X}), x_RX, weight_XW, sequences, dx_RX,
                         dweight_XW);
}

}  // namespace deltatrain::ops::reference
