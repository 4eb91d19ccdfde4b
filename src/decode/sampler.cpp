#include "decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "ops/reference/token_choices.h"

namespace deltatrain::decode {

double uniform_of(const Sampling& sampling, int64_t position) {
  return RandomStream(sampling.seed, "sampling").uniform(static_cast<uint64_t>(position));
}

int32_t sample(std::span<const float> logits, const Sampling& sampling, int64_t position) {
  for (const float logit : logits) {
    if (std::isnan(logit)) throw NumericError("sampling: logits: expected numbers, got NaN");
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  if (best == logits.end() || !std::isfinite(*best)) {
    throw NumericError(error_text("sampling", "logits", "a finite largest value",
                                  best == logits.end() ? "none" : std::to_string(*best)));
  }
  return ops::reference::draw(logits.data(), static_cast<int64_t>(logits.size()),
                              sampling.temperature, sampling.top_k, sampling.top_p,
                              uniform_of(sampling, position));
}

}  // namespace deltatrain::decode
