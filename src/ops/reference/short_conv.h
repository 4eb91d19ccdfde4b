// Plain loops of ops/short_conv.h.
#pragma once

#include <vector>

#include "ops/context.h"  // Sequences
#include "ops/reference/scalar.h"

namespace deltatrain::ops::reference {

// Input of channel x at token t of sequence s; tokens before the first come from the history.
template <class T>
T short_conv_input(View<const T> x_RX, View<const T> history_SWX, int64_t begin, int64_t s,
                   int64_t t, int64_t x) {
  if (t >= 0) return x_RX(begin + t, x);
  return history_SWX.defined() ? history_SWX(s, history_SWX.size(1) + t, x) : T(0);
}

template <class T>
void short_conv_forward(View<const T> x_RX, View<const T> weight_XW, const Sequences& sequences,
                        View<const T> initial_history_SWX, View<T> final_history_SWX,
                        View<T> y_RX) {
  const int64_t X = weight_XW.size(0), W = weight_XW.size(1);
  for (int64_t s = 0; s < sequences.num(); ++s) {
    const int64_t begin = sequences.begin(s), length = sequences.length(s);
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t x = 0; x < X; ++x) {
        T z = T(0);
        for (int64_t j = 0; j < W; ++j) {
          z += weight_XW(x, j) *
               short_conv_input(x_RX, initial_history_SWX, begin, s, t - W + 1 + j, x);
        }
        y_RX(begin + t, x) = z * sigmoid(z);
      }
    }
    if (!final_history_SWX.defined()) continue;
    for (int64_t j = 0; j < W - 1;
         ++j) {  // ascending: an aliased history is read ahead of where it is written
      for (int64_t x = 0; x < X; ++x) {
        final_history_SWX(s, j, x) =
            short_conv_input(x_RX, initial_history_SWX, begin, s, length - (W - 1) + j, x);
      }
    }
  }
}

template <class T>
void short_conv_backward(View<const T> dy_RX, View<const T> x_RX, View<const T> weight_XW,
                         const Sequences& sequences, View<T> dx_RX, View<T> dweight_XW) {
  const int64_t X = weight_XW.size(0), W = weight_XW.size(1);
  for (int64_t s = 0; s < sequences.num(); ++s) {
    const int64_t begin = sequences.begin(s), length = sequences.length(s);
    for (int64_t x = 0; x < X; ++x) {
      std::vector<T> dz(static_cast<size_t>(length));
      for (int64_t t = 0; t < length; ++t) {
        T z = T(0);
        for (int64_t j = 0; j < W; ++j) {
          z += weight_XW(x, j) * short_conv_input<T>(x_RX, {}, begin, s, t - W + 1 + j, x);
        }
        dz[static_cast<size_t>(t)] = dy_RX(begin + t, x) * silu_slope(z);
      }
      for (int64_t j = 0; j < W; ++j) {
        for (int64_t t = 0; t < length; ++t) {
          dweight_XW(x, j) += dz[static_cast<size_t>(t)] *
                              short_conv_input<T>(x_RX, {}, begin, s, t - W + 1 + j, x);
        }
      }
      for (int64_t t = 0; t < length; ++t) {
        T sum = T(0);
        for (int64_t j = 0; j < W; ++j) {
          const int64_t later = t + W - 1 - j;
          if (later < length) sum += weight_XW(x, j) * dz[static_cast<size_t>(later)];
        }
        dx_RX(begin + t, x) = sum;
      }
    }
  }
}

}  // namespace deltatrain::ops::reference
