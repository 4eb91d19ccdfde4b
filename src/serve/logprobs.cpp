#include "serve/logprobs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace deltatrain::serve {

TokenLogprobs token_logprobs(std::span<const float> logits, double lse, int32_t token,
                             int64_t num_top) {
  const auto of = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - lse);
  };
  TokenLogprobs result{.own = of(token), .top = {}};
  if (!std::isfinite(lse) || !std::isfinite(result.own))
    throw NumericError(error_text("model", "logits", "finite numbers", "NaN or infinity"));
  const auto count =
      static_cast<size_t>(std::clamp<int64_t>(num_top, 0, static_cast<int64_t>(logits.size())));
  if (count == 0) return result;
  const auto more_likely = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  // A heap of the best so far, whose front is the least likely of them.
  std::vector<int32_t> best;
  best.reserve(count + 1);
  float least = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (best.size() == count && !(logits[i] > least)) continue;
    best.push_back(static_cast<int32_t>(i));
    std::push_heap(best.begin(), best.end(), more_likely);
    if (best.size() > count) {
      std::pop_heap(best.begin(), best.end(), more_likely);
      best.pop_back();
    }
    least = logits[static_cast<size_t>(best.front())];
  }
  std::sort_heap(best.begin(), best.end(), more_likely);
  for (const int32_t id : best) {
    // A logit of minus infinity has no number in JSON.
    if (std::isfinite(of(id))) result.top.push_back({id, of(id)});
  }
  return result;
}

}  // namespace deltatrain::serve
