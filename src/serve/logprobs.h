// Log-probabilities as answers give them: of a token, and of the most likely ones in its place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deltatrain::serve {

struct TopToken {
  int32_t id = 0;
  float logprob = 0;
};

struct TokenLogprobs {
  float own = 0;              // of the token that stands there
  std::vector<TopToken> top;  // most likely first, the lower id first among equals
};

// log p = logit - lse, rounded once to f32, so that equal logits give equal numbers. `token` is
// below logits.size(); `num_top` is cut to the vocabulary. NumericError where lse or the token's
// value is not finite.
TokenLogprobs token_logprobs(std::span<const float> logits, double lse, int32_t token,
                             int64_t num_top);

}  // namespace deltatrain::serve
