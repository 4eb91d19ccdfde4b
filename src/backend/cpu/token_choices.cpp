#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "ops/reference/token_choices.h"

namespace deltatrain::backend::cpu {

namespace {

// As reference::draw, without an order of all tokens where the first few have the wanted share.
int32_t draw(const float* logits, int64_t N, double temperature, int64_t top_k, double top_p,
             double uniform) {
  if (temperature <= 0 || top_p >= 1 || top_k > 0)
    return ops::reference::draw(logits, N, temperature, top_k, top_p, uniform);
  const auto largest = static_cast<double>(*std::max_element(logits, logits + N));
  const auto weight = [&](int32_t id) {
    return ops::reference::choice_weight(static_cast<double>(logits[id]), largest, temperature);
  };
  uint64_t all = 0;
  for (int64_t n = 0; n < N; ++n) all += weight(static_cast<int32_t>(n));
  constexpr int64_t kFew = 64, kMore = 8;
  for (int64_t length = kFew;; length *= kMore) {
    std::vector<int32_t> kept = ops::reference::most_likely(logits, N, length);
    const size_t count = ops::reference::count_kept(kept, all, top_p, weight);
    if (count > kept.size()) continue;  // all of them have all of the weight
    kept.resize(count);
    std::sort(kept.begin(), kept.end());
    return ops::reference::pick(kept, uniform, weight);
  }
}

bool is_number(const float* row, int64_t N) {
  bool has_nan = false;
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t n = 0; n < N; ++n) {
    has_nan = has_nan || std::isnan(row[n]);
    largest = std::max(largest, row[n]);
  }
  return !has_nan && std::isfinite(largest);
}

}  // namespace

// Log-sum-exps are those of cross_entropy.
void token_choices(const Context& context, const ops::TokenChoices& args) {
  const int64_t R = args.logits_RN.size(0), N = args.logits_RN.size(1), X = args.top_ids_RX.size(1);
  std::vector<int32_t> labels(static_cast<size_t>(R), ops::kIgnoredLabel);
  std::vector<float> unused(static_cast<size_t>(R));
  cross_entropy(context, {.logits_RN = args.logits_RN,
                          .labels_R = Tensor(labels.data(), DType::kI32, {R}),
                          .loss_R = Tensor(unused.data(), DType::kF32, {R}),
                          .lse_R = args.lse_R,
                          .gradient = ops::CrossEntropy::Gradient::kNone});
  parallel_rows(R, N, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = args.logits_RN.data<float>() + r * N;
      int32_t& id = args.id_R.data<int32_t>()[r];
      int32_t* const top_ids = args.top_ids_RX.data<int32_t>() + r * X;
      float* const top_logits = args.top_logits_RX.data<float>() + r * X;
      std::fill(top_ids, top_ids + X, -1);
      std::fill(top_logits, top_logits + X, 0.0F);
      if (!is_number(row, N)) {
        id = -1;
        args.logit_R.data<float>()[r] = std::numeric_limits<float>::quiet_NaN();
        args.lse_R.data<float>()[r] = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      id = args.given_R.data<int32_t>()[r];
      if (id < 0) {
        id = draw(row, N, args.temperature_R.data<double>()[r], args.top_k_R.data<int32_t>()[r],
                  args.top_p_R.data<double>()[r], args.uniform_R.data<double>()[r]);
      }
      args.logit_R.data<float>()[r] = row[id];
      const int64_t num_top = args.num_top_R.data<int32_t>()[r];
      if (num_top == 0) continue;
      const std::vector<int32_t> top = ops::reference::most_likely(row, N, num_top);
      for (size_t i = 0; i < top.size(); ++i) {
        top_ids[i] = top[i];
        top_logits[i] = row[top[i]];
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
