// Plain loops of ops/delta_gate.h.
#pragma once

#include "ops/delta_gate.h"  // DecayForm
#include "ops/reference/scalar.h"

namespace deltatrain::ops::reference {

template <class T>
void delta_gate_forward(View<const T> a_RGK, View<const T> b_RG, View<const T> A_log_G,
                        View<const T> dt_bias_GK, DecayForm form, double lower_bound,
                        double beta_scale, View<T> g_RGK, View<T> beta_RG) {
  const int64_t R = a_RGK.size(0), G = a_RGK.size(1), K = a_RGK.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t g = 0; g < G; ++g) {
      const T rate = std::exp(A_log_G(g));
      for (int64_t k = 0; k < K; ++k) {
        const T x = a_RGK(r, g, k) + dt_bias_GK(g, k);
        g_RGK(r, g, k) =
            form == DecayForm::kSoftplus ? -rate * softplus(x) : T(lower_bound) * sigmoid(rate * x);
      }
      beta_RG(r, g) = T(beta_scale) * sigmoid(b_RG(r, g));
    }
  }
}

template <class T>
void delta_gate_backward(View<const T> dg_RGK, View<const T> dbeta_RG, View<const T> a_RGK,
                         View<const T> b_RG, View<const T> A_log_G, View<const T> dt_bias_GK,
                         DecayForm form, double lower_bound, double beta_scale, View<T> da_RGK,
                         View<T> db_RG, View<T> dA_log_G, View<T> ddt_bias_GK) {
  const int64_t R = a_RGK.size(0), G = a_RGK.size(1), K = a_RGK.size(2);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t g = 0; g < G; ++g) {
      const T rate = std::exp(A_log_G(g));
      for (int64_t k = 0; k < K; ++k) {
        const T x = a_RGK(r, g, k) + dt_bias_GK(g, k);
        const T dg = dg_RGK(r, g, k);
        T da;
        if (form == DecayForm::kSoftplus) {
          da = -rate * sigmoid(x) * dg;
          dA_log_G(g) += dg * (-rate * softplus(x));
        } else {
          const T s = sigmoid(rate * x);
          da = dg * T(lower_bound) * s * (T(1) - s) * rate;
          dA_log_G(g) += da * x;
        }
        da_RGK(r, g, k) = da;
        ddt_bias_GK(g, k) += da;
      }
      const T s = sigmoid(b_RG(r, g));
      db_RG(r, g) = dbeta_RG(r, g) * T(beta_scale) * s * (T(1) - s);
    }
  }
}

}  // namespace deltatrain::ops::reference
