#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/prefetch.h"

namespace deltatrain::backend::cpu {

void l2_norm_forward(const Context&, const ops::L2NormForward& args) {
  const int64_t H = args.x_RHK.size(1);
  const int64_t K = args.x_RHK.size(2);
  const float* x = args.x_RHK.data<float>();
  float* y = args.y_RHK.data<float>();
  float* inv_norm = args.inv_norm_RH.data<float>();
  const int64_t x_stride = args.x_RHK.stride(0);
  const int64_t x_head_stride = args.x_RHK.stride(1);
  const auto eps = static_cast<float>(args.eps);
  parallel_rows(args.x_RHK.size(0), H * K, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < H; ++h) {
        const float* x_row = x + r * x_stride + h * x_head_stride;
        float* y_row = y + (r * H + h) * K;
        prefetch(x_row + x_stride, K);
        const float square_sum = sum_over(K, [=](auto at) { return at(x_row) * at(x_row); });
        const float scale = 1.0F / std::sqrt(square_sum + eps);
        inv_norm[r * H + h] = scale;
#pragma omp simd
        for (int64_t k = 0; k < K; ++k) y_row[k] = x_row[k] * scale;
      }
    }
  });
}

void l2_norm_backward(const Context&, const ops::L2NormBackward& args) {
  const int64_t H = args.dy_RHK.size(1);
  const int64_t K = args.dy_RHK.size(2);
  const float* dy = args.dy_RHK.data<float>();
  const float* y = args.y_RHK.data<float>();
  const float* inv_norm = args.inv_norm_RH.data<float>();
  float* dx = args.dx_RHK.data<float>();
  const int64_t y_stride = args.y_RHK.stride(0);
  const int64_t y_head_stride = args.y_RHK.stride(1);
  const int64_t dx_stride = args.dx_RHK.stride(0);
  const int64_t dx_head_stride = args.dx_RHK.stride(1);
  parallel_rows(args.dy_RHK.size(0), H * K, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < H; ++h) {
        const float* dy_row = dy + (r * H + h) * K;
        const float* y_row = y + r * y_stride + h * y_head_stride;
        float* dx_row = dx + r * dx_stride + h * dx_head_stride;
        const float scale = inv_norm[r * H + h];
        const float dot = sum_over(K, [=](auto at) { return at(y_row) * at(dy_row); });
#pragma omp simd
        for (int64_t k = 0; k < K; ++k) dx_row[k] = scale * (dy_row[k] - y_row[k] * dot);
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
