#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

void swiglu_forward(const Context&, const ops::SwigluForward& args) {
  const int64_t F = args.y_RF.size(1);
  const float* gate_up = args.gate_up_RX.data<float>();
  float* y = args.y_RF.data<float>();
  parallel_rows(args.y_RF.size(0), 2 * F, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gate_up + r * 2 * F;
      const float* up = gate + F;
      float* y_row = y + r * F;
#pragma omp simd
      for (int64_t f = 0; f < F; ++f) y_row[f] = silu_f32(gate[f]) * up[f];
    }
  });
}

void swiglu_backward(const Context&, const ops::SwigluBackward& args) {
  const int64_t F = args.dy_RF.size(1);
  const float* dy = args.dy_RF.data<float>();
  const float* gate_up = args.gate_up_RX.data<float>();
  float* dgate_up = args.dgate_up_RX.data<float>();
  float* y = args.y_RF.data<float>();
  parallel_rows(args.dy_RF.size(0), 2 * F, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* dy_row = dy + r * F;
      const float* gate = gate_up + r * 2 * F;
      const float* up = gate + F;
      float* dgate = dgate_up + r * 2 * F;
      float* dup = dgate + F;
      float* y_row = y == nullptr ? nullptr : y + r * F;
      if (y_row != nullptr) {
#pragma omp simd
        for (int64_t f = 0; f < F; ++f) {
          const float g = gate[f];
          const float u = up[f];
          const float s = sigmoid_f32(g);
          const float act = g * s;
          y_row[f] = act * u;
          dgate[f] = dy_row[f] * u * (s * (1.0F + g * (1.0F - s)));
          dup[f] = dy_row[f] * act;
        }
      } else {
#pragma omp simd
        for (int64_t f = 0; f < F; ++f) {
          const float g = gate[f];
          const float u = up[f];
          const float s = sigmoid_f32(g);
          dgate[f] = dy_row[f] * u * (s * (1.0F + g * (1.0F - s)));
          dup[f] = dy_row[f] * (g * s);
        }
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
