// Plain loops of ops/swiglu.h.
#pragma once

#include "ops/reference/scalar.h"
#include "tensor/tensor.h"

namespace deltatrain::ops::reference {

template <class T>
void swiglu_forward(View<const T> gate_up_RX, View<T> y_RF) {
  const int64_t R = y_RF.size(0), F = y_RF.size(1);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t f = 0; f < F; ++f) {
      y_RF(r, f) = gate_up_RX(r, f) * sigmoid(gate_up_RX(r, f)) * gate_up_RX(r, F + f);
    }
  }
}

template <class T>
void swiglu_backward(View<const T> dy_RF, View<const T> gate_up_RX, View<T> dgate_up_RX,
                     View<T> y_RF) {
  const int64_t R = dy_RF.size(0), F = dy_RF.size(1);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t f = 0; f < F; ++f) {
      const T gate = gate_up_RX(r, f);
      const T up = gate_up_RX(r, F + f);
      const T activated = gate * sigmoid(gate);
      if (y_RF.defined()) y_RF(r, f) = activated * up;
      dgate_up_RX(r, f) = dy_RF(r, f) * up * silu_slope(gate);
      dgate_up_RX(r, F + f) = dy_RF(r, f) * activated;
    }
  }
}

}  // namespace deltatrain::ops::reference
