#include "decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace deltatrain::decode {

int32_t sample(std::span<const float> logits, const Sampling& sampling, int64_t position) {
  for (const float logit : logits) {
    if (std::isnan(logit)) throw NumericError("sampling: logits: expected numbers, got NaN");
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  if (best == logits.end() || !std::isfinite(*best)) {
    throw NumericError(error_text("sampling", "logits", "a finite largest value",
                                  best == logits.end() ? "none" : std::to_string(*best)));
  }
  if (sampling.temperature <= 0) return static_cast<int32_t>(best - logits.begin());

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_likely = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t kept = order.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<size_t>(sampling.top_k));
  if (kept < order.size()) {
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                      more_likely);
    order.resize(kept);
  } else if (sampling.top_p < 1) {
    std::sort(order.begin(), order.end(), more_likely);
  }
  std::vector<double> weights(order.size());
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - *best) /
                          sampling.temperature);
    total += weights[i];
  }
  if (sampling.top_p < 1) {
    double sum = 0;
    size_t count = 0;
    while (count < weights.size() && (count == 0 || sum < sampling.top_p * total))
      sum += weights[count++];
    weights.resize(count);
    total = sum;
  }
  double left =
      total * RandomStream(sampling.seed, "sampling").uniform(static_cast<uint64_t>(position));
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[weights.size() - 1];
}

}  // namespace deltatrain::decode
