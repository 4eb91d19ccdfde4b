#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/sequence_rows.h"

namespace deltatrain::backend::cpu {

void rotary(const Context& context, const ops::Rotary& args) {
  const int64_t R = args.x_RHX.size(0);
  const int64_t H = args.x_RHX.size(1);
  const int64_t half = args.x_RHX.size(2) / 2;
  const Arena::ScratchScope scope(*context.arena);
  double* frequency = context.arena->scratch(DType::kF64, {half}).data<double>();
  float* tables = context.arena->scratch(DType::kF32, {max_threads(), 2, half}).data<float>();
  if (context.arena->is_planning()) return;
  for (int64_t i = 0; i < half; ++i) {
    frequency[i] = std::pow(args.theta, -static_cast<double>(i) / static_cast<double>(half));
  }
  const float* x = args.x_RHX.data<float>();
  float* y = args.y_RHX.data<float>();
  const int64_t x_stride = args.x_RHX.stride(0);
  const int64_t x_head_stride = args.x_RHX.stride(1);
  const int64_t y_stride = args.y_RHX.stride(0);
  const int64_t y_head_stride = args.y_RHX.stride(1);
  const int32_t* starts =
      args.start_positions_S.defined() ? args.start_positions_S.data<int32_t>() : nullptr;
  const float sign = args.direction == ops::RotaryDirection::kForward ? 1.0F : -1.0F;
  const ops::Sequences& sequences = args.sequences;
  parallel_rows(R, H * 2 * half, [&](int64_t begin, int64_t end) {
    float* cosine = tables + thread_index() * 2 * half;
    float* sine = cosine + half;
    int64_t s = sequence_of_row(sequences, begin);
    for (int64_t r = begin; r < end; ++r) {
      while (r >= sequences.end(s)) ++s;
      const int64_t position = r - sequences.begin(s) + (starts == nullptr ? 0 : starts[s]);
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequency[i];
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = sign * static_cast<float>(std::sin(angle));
      }
      for (int64_t h = 0; h < H; ++h) {
        const float* x_row = x + r * x_stride + h * x_head_stride;
        float* y_row = y + r * y_stride + h * y_head_stride;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const float a = x_row[i];
          const float b = x_row[half + i];
          y_row[i] = a * cosine[i] - b * sine[i];
          y_row[half + i] = b * cosine[i] + a * sine[i];
        }
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
