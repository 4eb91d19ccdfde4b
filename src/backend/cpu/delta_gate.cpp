// Heads and channels are one flat axis here: per-head values are spread over their channels first.
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

// exp(A_log) of each channel's head.
void spread_exp(const Tensor& A_log_G, int64_t K, float* exp_A) {
  const float* A_log = A_log_G.data<float>();
  for (int64_t h = 0; h < A_log_G.size(0); ++h) {
    const auto value = static_cast<float>(std::exp(static_cast<double>(A_log[h])));
    std::fill(exp_A + h * K, exp_A + (h + 1) * K, value);
  }
}

struct GateRow {
  const float* exp_A;
  const float* dt_bias;
  int64_t count;
  float lower_bound;
};

template <ops::DecayForm kForm>
inline float log_decay(float exp_A, float shifted, float lower_bound) {
  if constexpr (kForm == ops::DecayForm::kSoftplus) {
    return -exp_A * softplus_f32(shifted);
  } else {
    return lower_bound * sigmoid_f32(exp_A * shifted);
  }
}

template <ops::DecayForm kForm>
void forward_row(const GateRow& row, const float* a, float* g) {
#pragma omp simd
  for (int64_t i = 0; i < row.count; ++i) {
    g[i] = log_decay<kForm>(row.exp_A[i], a[i] + row.dt_bias[i], row.lower_bound);
  }
}

template <ops::DecayForm kForm>
void backward_row(const GateRow& row, const float* a, const float* dg, float* da, float* dA_log,
                  float* ddt_bias) {
#pragma omp simd
  for (int64_t i = 0; i < row.count; ++i) {
    const float shifted = a[i] + row.dt_bias[i];
    const float exp_A = row.exp_A[i];
    float gradient;
    if constexpr (kForm == ops::DecayForm::kSoftplus) {
      gradient = -exp_A * sigmoid_f32(shifted) * dg[i];
      dA_log[i] += dg[i] * (-exp_A * softplus_f32(shifted));
    } else {
      const float s = sigmoid_f32(exp_A * shifted);
      const float not_s = sigmoid_f32(-exp_A * shifted);
      gradient = dg[i] * row.lower_bound * s * not_s * exp_A;
      dA_log[i] += gradient * shifted;
    }
    da[i] = gradient;
    ddt_bias[i] += gradient;
  }
}

}  // namespace

void delta_gate_forward(const Context& context, const ops::DeltaGateForward& args) {
  const int64_t G = args.a_RGK.size(1);
  const int64_t K = args.a_RGK.size(2);
  const Arena::ScratchScope scope(*context.arena);
  float* exp_A = context.arena->scratch(DType::kF32, {G, K}).data<float>();
  if (context.arena->is_planning()) return;
  spread_exp(args.A_log_G, K, exp_A);
  const GateRow row = {exp_A, args.dt_bias_GK.data<float>(), G * K,
                       static_cast<float>(args.lower_bound)};
  const float* a = args.a_RGK.data<float>();
  const float* b = args.b_RG.data<float>();
  float* g = args.g_RGK.data<float>();
  float* beta = args.beta_RG.data<float>();
  const int64_t a_stride = args.a_RGK.stride(0);
  const int64_t b_stride = args.b_RG.stride(0);
  const auto beta_scale = static_cast<float>(args.beta_scale);
  const ops::DecayForm form = args.form;
  parallel_rows(args.a_RGK.size(0), G * K + G, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (form == ops::DecayForm::kSoftplus) {
        forward_row<ops::DecayForm::kSoftplus>(row, a + r * a_stride, g + r * G * K);
      } else {
        forward_row<ops::DecayForm::kBounded>(row, a + r * a_stride, g + r * G * K);
      }
      const float* b_row = b + r * b_stride;
      float* beta_row = beta + r * G;
#pragma omp simd
      for (int64_t h = 0; h < G; ++h) beta_row[h] = beta_scale * sigmoid_f32(b_row[h]);
    }
  });
}

void delta_gate_backward(const Context& context, const ops::DeltaGateBackward& args) {
  const int64_t R = args.a_RGK.size(0);
  const int64_t G = args.a_RGK.size(1);
  const int64_t K = args.a_RGK.size(2);
  const int64_t num_blocks = num_sum_blocks(R);
  const Arena::ScratchScope scope(*context.arena);
  float* exp_A = context.arena->scratch(DType::kF32, {G, K}).data<float>();
  float* totals = context.arena->scratch(DType::kF32, {G, K}).data<float>();
  float* dA_log_partials = context.arena->scratch(DType::kF32, {num_blocks, G, K}).data<float>();
  float* ddt_bias_partials = context.arena->scratch(DType::kF32, {num_blocks, G, K}).data<float>();
  if (context.arena->is_planning()) return;
  spread_exp(args.A_log_G, K, exp_A);
  const GateRow row = {exp_A, args.dt_bias_GK.data<float>(), G * K,
                       static_cast<float>(args.lower_bound)};
  const float* dg = args.dg_RGK.data<float>();
  const float* dbeta = args.dbeta_RG.data<float>();
  const float* a = args.a_RGK.data<float>();
  const float* b = args.b_RG.data<float>();
  float* da = args.da_RGK.data<float>();
  float* db = args.db_RG.data<float>();
  const int64_t a_stride = args.a_RGK.stride(0);
  const int64_t b_stride = args.b_RG.stride(0);
  const int64_t da_stride = args.da_RGK.stride(0);
  const int64_t db_stride = args.db_RG.stride(0);
  const auto beta_scale = static_cast<float>(args.beta_scale);
  const ops::DecayForm form = args.form;
  parallel_for(num_blocks, [=](int64_t block) {
    float* dA_log = dA_log_partials + block * G * K;
    float* ddt_bias = ddt_bias_partials + block * G * K;
    std::fill(dA_log, dA_log + G * K, 0.0F);
    std::fill(ddt_bias, ddt_bias + G * K, 0.0F);
    for (int64_t r = block * kSumRows; r < std::min(R, (block + 1) * kSumRows); ++r) {
      if (form == ops::DecayForm::kSoftplus) {
        backward_row<ops::DecayForm::kSoftplus>(row, a + r * a_stride, dg + r * G * K,
                                                da + r * da_stride, dA_log, ddt_bias);
      } else {
        backward_row<ops::DecayForm::kBounded>(row, a + r * a_stride, dg + r * G * K,
                                               da + r * da_stride, dA_log, ddt_bias);
      }
      const float* b_row = b + r * b_stride;
      const float* dbeta_row = dbeta + r * G;
      float* db_row = db + r * db_stride;
#pragma omp simd
      for (int64_t h = 0; h < G; ++h) {
        db_row[h] = dbeta_row[h] * beta_scale * sigmoid_f32(b_row[h]) * sigmoid_f32(-b_row[h]);
      }
    }
  });
  add_partial_sums(ddt_bias_partials, num_blocks, G * K, args.ddt_bias_GK.data<float>());
  std::fill(totals, totals + G * K, 0.0F);
  add_partial_sums(dA_log_partials, num_blocks, G * K, totals);
  float* dA_log = args.dA_log_G.data<float>();
  for (int64_t h = 0; h < G; ++h) {
    double sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += static_cast<double>(totals[h * K + k]);
    dA_log[h] += static_cast<float>(sum);
  }
}

}  // namespace deltatrain::backend::cpu
