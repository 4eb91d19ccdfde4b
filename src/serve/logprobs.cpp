#include "serve/logprobs.h"

#include <cmath>

#include "base/error.h"

namespace deltatrain::serve {

TokenLogprobs token_logprobs(const decode::TileDecoder::Choice& choice) {
  const auto of = [&](double logit) { return static_cast<float>(logit - choice.lse); };
  TokenLogprobs result{.own = of(choice.logit), .top = {}};
  if (!std::isfinite(choice.lse) || !std::isfinite(result.own))
    throw NumericError(error_text("model", "logits", "finite numbers", "NaN or infinity"));
  for (const auto& [id, logit] : choice.top) {
    // A logit of minus infinity has no number in JSON.
    if (std::isfinite(of(logit))) result.top.push_back({id, of(logit)});
  }
  return result;
}

}  // namespace deltatrain::serve
