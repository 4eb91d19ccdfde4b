// Plain loops of ops/gated_rms_norm.h.
#pragma once

#include "ops/gated_rms_norm.h"  // GateActivation
#include "ops/reference/scalar.h"

namespace deltatrain::ops::reference {

template <class T>
T gate_activation(T z, GateActivation activation) {
  return activation == GateActivation::kSilu ? z * sigmoid(z) : sigmoid(z);
}

template <class T>
T gate_activation_slope(T z, GateActivation activation) {
  if (activation == GateActivation::kSilu) return silu_slope(z);
  return sigmoid(z) * (T(1) - sigmoid(z));
}

template <class T>
void gated_rms_norm_forward(View<const T> o_RGV, View<const T> gate_RGV, View<const T> weight_V,
                            double eps, GateActivation activation, View<T> y_RGV,
                            View<T> inv_rms_RG) {
  const int64_t R = o_RGV.size(0), G = o_RGV.size(1), V = o_RGV.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t g = 0; g < G; ++g) {
      T sum_sq = T(0);
      for (int64_t v = 0; v < V; ++v) sum_sq += o_RGV(r, g, v) * o_RGV(r, g, v);
      inv_rms_RG(r, g) = T(1) / std::sqrt(sum_sq / T(V) + T(eps));
      for (int64_t v = 0; v < V; ++v) {
        y_RGV(r, g, v) = o_RGV(r, g, v) * inv_rms_RG(r, g) * weight_V(v) *
                         gate_activation(gate_RGV(r, g, v), activation);
      }
    }
  }
}

template <class T>
void gated_rms_norm_backward(View<const T> dy_RGV, View<const T> o_RGV, View<const T> gate_RGV,
                             View<const T> weight_V, View<const T> inv_rms_RG,
                             GateActivation activation, View<T> do_RGV, View<T> dgate_RGV,
                             View<T> dweight_V) {
  const int64_t R = dy_RGV.size(0), G = dy_RGV.size(1), V = dy_RGV.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t g = 0; g < G; ++g) {
      const T inv_rms = inv_rms_RG(r, g);
      T c = T(0);
      for (int64_t v = 0; v < V; ++v) {
        const T normed = o_RGV(r, g, v) * inv_rms;
        const T du = dy_RGV(r, g, v) * gate_activation(gate_RGV(r, g, v), activation);
        c += normed * weight_V(v) * du;
        dweight_V(v) += du * normed;
      }
      c /= T(V);
      for (int64_t v = 0; v < V; ++v) {
        const T z = gate_RGV(r, g, v);
        const T dy = dy_RGV(r, g, v);
        const T normed = o_RGV(r, g, v) * inv_rms;
        dgate_RGV(r, g, v) = dy * normed * weight_V(v) * gate_activation_slope(z, activation);
        do_RGV(r, g, v) =
            inv_rms * (weight_V(v) * dy * gate_activation(z, activation) - normed * c);
      }
    }
  }
}

}  // namespace deltatrain::ops::reference
