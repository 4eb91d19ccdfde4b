#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

namespace {

float rounded_to_bf16(float x) { return static_cast<float>(BFloat16(x)); }

// What the targets of a row need of it.
struct Row {
  double lse = 0;
  int32_t first = 0;  // of the most likely
};

Row scan_as_bf16(const float* row, int64_t N) {
  std::vector<float> rounded(row, row + N);
  for (float& value : rounded) value = rounded_to_bf16(value);
  const float largest = *std::max_element(rounded.begin(), rounded.end());
  double sum = 0;
  for (const float value : rounded) sum += std::exp(static_cast<double>(value - largest));
  Row result{.lse = static_cast<double>(largest) + std::log(sum)};
  const auto log_probability = [&](float logit) {
    return rounded_to_bf16(static_cast<float>(static_cast<double>(logit) - result.lse));
  };
  const float best = log_probability(largest);
  while (result.first + 1 < N && log_probability(rounded[static_cast<size_t>(result.first)]) < best)
    ++result.first;
  return result;
}

Row scan(const float* row, int64_t N, double lse) {
  Row result{.lse = lse};
  const auto log_probability = [lse](float logit) {
    return static_cast<float>(static_cast<double>(logit) - lse);
  };
  const float best = log_probability(*std::max_element(row, row + N));
  while (result.first + 1 < N && log_probability(row[result.first]) < best) ++result.first;
  return result;
}

}  // namespace

// Log-sum-exps are those of cross_entropy. Rows that no target asks for are not looked at twice.
void token_scores(const Context& context, const ops::TokenScores& args) {
  const int64_t R = args.logits_RN.size(0), N = args.logits_RN.size(1);
  const int64_t T = args.rows_T.size(0);
  const float* logits = args.logits_RN.data<float>();
  const int32_t* rows = args.rows_T.data<int32_t>();
  const int32_t* ids = args.ids_T.data<int32_t>();
  float* log_probability = args.log_probability_T.data<float>();
  int32_t* is_greedy = args.is_greedy_T.data<int32_t>();
  const bool rounds = args.rounding == ops::TokenScores::Rounding::kBf16;
  std::vector<char> is_wanted(static_cast<size_t>(R), 0);
  for (int64_t t = 0; t < T; ++t) is_wanted[static_cast<size_t>(rows[t])] = 1;
  std::vector<float> lse(static_cast<size_t>(R)), unused(static_cast<size_t>(R));
  if (!rounds) {
    std::vector<int32_t> labels(static_cast<size_t>(R), ops::kIgnoredLabel);
    cross_entropy(context, {.logits_RN = args.logits_RN,
                            .labels_R = Tensor(labels.data(), DType::kI32, {R}),
                            .loss_R = Tensor(unused.data(), DType::kF32, {R}),
                            .lse_R = Tensor(lse.data(), DType::kF32, {R}),
                            .gradient = ops::CrossEntropy::Gradient::kNone});
  }
  std::vector<Row> scanned(static_cast<size_t>(R));
  parallel_rows(R, N, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto at = static_cast<size_t>(r);
      if (is_wanted[at] == 0) continue;
      const float* row = logits + r * N;
      scanned[at] = rounds ? scan_as_bf16(row, N) : scan(row, N, static_cast<double>(lse[at]));
    }
  });
  for (int64_t t = 0; t < T; ++t) {
    const Row& row = scanned[static_cast<size_t>(rows[t])];
    if (!std::isfinite(row.lse)) {
      log_probability[t] = std::numeric_limits<float>::quiet_NaN();
      is_greedy[t] = 0;
      continue;
    }
    float logit = logits[rows[t] * N + ids[t]];
    if (rounds) logit = rounded_to_bf16(logit);
    const auto value = static_cast<float>(static_cast<double>(logit) - row.lse);
    log_probability[t] = rounds ? rounded_to_bf16(value) : value;
    is_greedy[t] = row.first == ids[t] ? 1 : 0;
  }
}

}  // namespace deltatrain::backend::cpu
