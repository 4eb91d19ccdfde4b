#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

void sum_of_squares(const Context& context, const ops::SumOfSquares& args) {
  constexpr int64_t kBlock = 16384;
  const int64_t X = args.gradient_X.num_elements();
  const int64_t num_blocks = divide_up(X, kBlock);
  const Arena::ScratchScope scope(*context.arena);
  double* sums = context.arena->scratch(DType::kF64, {num_blocks}).data<double>();
  if (context.arena->is_planning()) return;
  const float* gradient = args.gradient_X.data<float>();
  parallel_for(num_blocks, [=](int64_t block) {
    const float* const part = gradient + block * kBlock;
    sums[block] = sum_over_f64(std::min(kBlock, X - block * kBlock), [=](int64_t i) {
      const auto g = static_cast<double>(part[i]);
      return g * g;
    });
  });
  double total = args.mode == ops::GradMode::kAccumulate ? args.scalars->sum_of_squares : 0;
  for (int64_t block = 0; block < num_blocks; ++block) total += sums[block];
  args.scalars->sum_of_squares = total;
}

void finish_gradient_norm(const Context&, const ops::FinishGradientNorm& args) {
  ops::StepScalars& scalars = *args.scalars;
  scalars.gradient_norm = std::sqrt(scalars.sum_of_squares);
  scalars.clip_factor = scalars.clip_grad > 0
                            ? std::min(1.0, scalars.clip_grad / (scalars.gradient_norm + 1e-6))
                            : 1.0;
  const bool finite_loss = args.loss_sum == nullptr || std::isfinite(*args.loss_sum);
  if (!std::isfinite(scalars.gradient_norm) || !finite_loss) ++scalars.skipped;
}

void adamw(const Context&, const ops::AdamW& args) {
  const ops::StepScalars& scalars = *args.scalars;
  if (!std::isfinite(scalars.gradient_norm) || scalars.skipped != 0) return;
  const int64_t X = args.parameter_X.num_elements();
  float* parameter = args.parameter_X.data<float>();
  BFloat16* compute = args.compute_X.defined() ? args.compute_X.data<BFloat16>() : nullptr;
  const float* gradient = args.gradient_X.data<float>();
  float* m = args.m_X.data<float>();
  float* v = args.v_X.data<float>();
  const uint8_t* decays = args.decays_X.data<uint8_t>();
  const double corrected_1 = 1.0 - std::pow(args.beta1, scalars.step);
  const double corrected_2 = 1.0 - std::pow(args.beta2, scalars.step);
  const auto beta1 = static_cast<float>(args.beta1);
  const auto beta2 = static_cast<float>(args.beta2);
  const auto keep_m = static_cast<float>(1.0 - args.beta1);
  const auto keep_v = static_cast<float>(1.0 - args.beta2);
  const auto clip = static_cast<float>(scalars.clip_factor);
  const auto step_size = static_cast<float>(scalars.learning_rate / corrected_1);
  const auto inverse_2 = static_cast<float>(1.0 / corrected_2);
  const auto eps = static_cast<float>(args.eps);
  // Not folded into a factor 1 - lr decay: in f32 that would round most of a small decay away.
  const auto decay = static_cast<float>(scalars.learning_rate * args.weight_decay);
  parallel_elements(X, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block += ops::kDecayBlock) {
      const float shrink = decays[block / ops::kDecayBlock] != 0 ? decay : 0.0F;
      const int64_t block_end = std::min(end, block + ops::kDecayBlock);
#pragma omp simd
      for (int64_t i = block; i < block_end; ++i) {
        const float g = clip * gradient[i];
        const float m_new = beta1 * m[i] + keep_m * g;
        const float v_new = beta2 * v[i] + keep_v * (g * g);
        m[i] = m_new;
        v[i] = v_new;
        const float p = parameter[i];
        parameter[i] = p - (step_size * m_new / (std::sqrt(v_new * inverse_2) + eps) + shrink * p);
      }
      if (compute != nullptr) {
        for (int64_t i = block; i < block_end; ++i) compute[i] = BFloat16(parameter[i]);
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
