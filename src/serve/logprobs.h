// Log-probabilities as answers give them: of a token, and of the most likely ones in its place.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/tile_decoder.h"

namespace deltatrain::serve {

struct TopToken {
  int32_t id = 0;
  float logprob = 0;
};

struct TokenLogprobs {
  float own = 0;              // of the token that stands there
  std::vector<TopToken> top;  // most likely first, the lower id first among equals
};

// log p = logit - lse, rounded once to f32, so that equal logits give equal numbers. NumericError where the token's value is
// not finite.
TokenLogprobs token_logprobs(const decode::TileDecoder::Choice& choice);

}  // namespace deltatrain::serve
