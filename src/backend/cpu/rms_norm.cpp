#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

void rms_norm_forward(const Context&, const ops::RmsNormForward& args) {
  const int64_t D = args.y_RD.size(1);
  const float* x = args.x_RD.data<float>();
  const float* residual = args.residual_RD.data<float>();
  const float* weight = args.weight_D.data<float>();
  float* sum = args.sum_RD.data<float>();
  float* y = args.y_RD.data<float>();
  float* inv_rms = args.inv_rms_R.data<float>();
  const int64_t x_stride = args.x_RD.stride(0);
  const int64_t residual_stride = args.residual_RD.stride(0);
  const int64_t sum_stride = args.sum_RD.stride(0);
  const int64_t y_stride = args.y_RD.stride(0);
  const double eps = args.eps;
  parallel_rows(args.y_RD.size(0), D, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* s_row = x + r * x_stride;
      if (residual != nullptr) {
        const float* residual_row = residual + r * residual_stride;
        float* sum_row = sum + r * sum_stride;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) sum_row[d] = s_row[d] + residual_row[d];
        s_row = sum_row;
      }
      const float square_sum = sum_over(D, [=](auto at) { return at(s_row) * at(s_row); });
      const auto scale = static_cast<float>(
          1.0 / std::sqrt(static_cast<double>(square_sum) / static_cast<double>(D) + eps));
      inv_rms[r] = scale;
      float* y_row = y + r * y_stride;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) y_row[d] = s_row[d] * scale * weight[d];
    }
  });
}

void rms_norm_backward(const Context& context, const ops::RmsNormBackward& args) {
  const int64_t R = args.dy_RD.size(0);
  const int64_t D = args.dy_RD.size(1);
  const Arena::ScratchScope scope(*context.arena);
  const int64_t num_blocks = num_sum_blocks(R);
  float* partials = context.arena->scratch(DType::kF32, {num_blocks, D}).data<float>();
  if (context.arena->is_planning()) return;
  const float* dy = args.dy_RD.data<float>();
  const float* s = args.sum_RD.data<float>();
  const float* weight = args.weight_D.data<float>();
  const float* inv_rms = args.inv_rms_R.data<float>();
  const float* dsum = args.dsum_RD.data<float>();
  float* dx = args.dx_RD.data<float>();
  float* dx_rounded = args.dx_rounded_RD.data<float>();
  const int64_t dy_stride = args.dy_RD.stride(0);
  const int64_t s_stride = args.sum_RD.stride(0);
  const int64_t dsum_stride = args.dsum_RD.stride(0);
  const int64_t dx_stride = args.dx_RD.stride(0);
  parallel_for(num_blocks, [=](int64_t block) {
    float* dweight = partials + block * D;
    std::fill(dweight, dweight + D, 0.0F);
    for (int64_t r = block * kSumRows; r < std::min(R, (block + 1) * kSumRows); ++r) {
      const float* dy_row = dy + r * dy_stride;
      const float* s_row = s + r * s_stride;
      float* dx_row = dx + r * dx_stride;
      const float scale = inv_rms[r];
      const float dot = sum_over(D, [=](auto at) { return at(s_row) * (at(weight) * at(dy_row)); });
      const float c = dot * scale * scale / static_cast<float>(D);  // r times the mean of s r w dy
      if (dsum != nullptr) {
        const float* dsum_row = dsum + r * dsum_stride;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) {
          const float dy_d = dy_row[d];
          const float s_d = s_row[d];
          dweight[d] += dy_d * (s_d * scale);
          dx_row[d] = scale * (weight[d] * dy_d - s_d * c) + dsum_row[d];
        }
      } else {
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) {
          const float dy_d = dy_row[d];
          const float s_d = s_row[d];
          dweight[d] += dy_d * (s_d * scale);
          dx_row[d] = scale * (weight[d] * dy_d - s_d * c);
        }
      }
      if (dx_rounded != nullptr) std::copy_n(dx_row, D, dx_rounded + r * D);
    }
  });
  add_partial_sums(partials, num_blocks, D, args.dweight_D.data<float>());
}

}  // namespace deltatrain::backend::cpu
