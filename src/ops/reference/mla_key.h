// Plain loops of ops/mla_key.h.
#pragma once

#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

template <class T>
void mla_key_forward(View<const T> k_nope_RHX, View<const T> k_rope_RX, View<T> k_RHK) {
  const int64_t R = k_RHK.size(0), H = k_RHK.size(1), K = k_RHK.size(2), nope = k_nope_RHX.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t k = 0; k < K; ++k)
        k_RHK(r, h, k) = k < nope ? k_nope_RHX(r, h, k) : k_rope_RX(r, k - nope);
    }
  }
}

template <class T>
void mla_key_backward(View<const T> dk_RHK, View<T> dk_nope_RHX, View<T> dk_rope_RX) {
  const int64_t R = dk_RHK.size(0), H = dk_RHK.size(1), K = dk_RHK.size(2),
                nope = dk_nope_RHX.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t k = 0; k < K; ++k) {
      T sum = T(0);
      for (int64_t h = 0; h < H; ++h) {
        if (k < nope) dk_nope_RHX(r, h, k) = dk_RHK(r, h, k);
        sum += dk_RHK(r, h, k);
      }
      if (k >= nope) dk_rope_RX(r, k - nope) = sum;
    }
  }
}

}  // namespace deltatrain::ops::reference
