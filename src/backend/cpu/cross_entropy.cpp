#include <cmath>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

// Lanes are summed in f32 over this many columns, then in f64.
constexpr int64_t kColumns = 512;

float largest(const float* row, int64_t N) {
  float best = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : best)
  for (int64_t n = 0; n < N; ++n) best = row[n] > best ? row[n] : best;
  return best;
}

// sum_n exp(row_n - shift); with kKeep the terms replace the row.
template <bool kKeep>
double sum_of_exp(float* row, int64_t N, float shift) {
  alignas(64) float terms[kColumns];
  double total = 0;
  for (int64_t begin = 0; begin < N; begin += kColumns) {
    const int64_t count = std::min(kColumns, N - begin);
    float* part = row + begin;
    float* const to = kKeep ? part : terms;
#pragma omp simd
    for (int64_t n = 0; n < count; ++n) to[n] = exp_f32(part[n] - shift);
    total += static_cast<double>(sum_over(count, [=](auto at) { return at(to); }));
  }
  return total;
}

}  // namespace

void cross_entropy(const Context&, const ops::CrossEntropy& args) {
  const int64_t N = args.logits_RN.size(1);
  float* logits = args.logits_RN.data<float>();
  const int64_t stride = args.logits_RN.stride(0);
  const int32_t* labels = args.labels_R.data<int32_t>();
  float* loss = args.loss_R.data<float>();
  float* lse_out = args.lse_R.data<float>();
  const double grad_scale = args.grad_scale;
  const bool writes = args.gradient == ops::CrossEntropy::Gradient::kWrite;
  parallel_rows(args.logits_RN.size(0), N, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = logits + r * stride;
      const bool ignored = labels[r] == ops::kIgnoredLabel;
      if (ignored) {
        loss[r] = 0;
        if (lse_out == nullptr) {
          if (writes) std::fill(row, row + N, 0.0F);
          continue;
        }
      }
      const float shift = largest(row, N);
      const double label_logit = ignored ? 0 : static_cast<double>(row[labels[r]]);
      const double sum =
          writes ? sum_of_exp<true>(row, N, shift) : sum_of_exp<false>(row, N, shift);
      const double lse = static_cast<double>(shift) + std::log(sum);
      if (lse_out != nullptr) lse_out[r] = static_cast<float>(lse);
      if (!ignored) loss[r] = static_cast<float>(lse - label_logit);
      if (!writes) continue;
      if (ignored) {
        std::fill(row, row + N, 0.0F);
        continue;
      }
      const auto factor = static_cast<float>(grad_scale / sum);
      const float label_exp = row[labels[r]];
#pragma omp simd
      for (int64_t n = 0; n < N; ++n) row[n] *= factor;
      row[labels[r]] =
          static_cast<float>((static_cast<double>(label_exp) / sum - 1.0) * grad_scale);
    }
  });
}

}  // namespace deltatrain::backend::cpu
