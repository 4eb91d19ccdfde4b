// Plain loops of ops/embedding.h.
#pragma once

#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

template <class T>
void embedding_forward(View<const int32_t> ids_R, View<const T> weight_ND, View<T> y_RD) {
  const int64_t R = y_RD.size(0), D = y_RD.size(1);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t d = 0; d < D; ++d) y_RD(r, d) = ids_R(r) < 0 ? T(0) : weight_ND(ids_R(r), d);
  }
}

template <class T>
void embedding_backward(View<const int32_t> ids_R, View<const T> dy_RD, View<T> dweight_ND) {
  const int64_t R = dy_RD.size(0), D = dy_RD.size(1);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t d = 0; d < D; ++d) dweight_ND(ids_R(r), d) += dy_RD(r, d);
  }
}

}  // namespace deltatrain::ops::reference
