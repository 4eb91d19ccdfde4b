// Choice of the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace deltatrain::decode {

struct Sampling {
  double temperature = 1;  // 0: greedy, the lowest id among equals
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // the smallest set of most likely tokens whose probabilities reach top_p
  uint64_t seed = 0;
};

// The random number that decides for the token at `position`: of seed and position alone.
double uniform_of(const Sampling& sampling, int64_t position);

// As ops::token_choices draws: top_k before top_p, ties at a border broken by the lower id. NumericError for a NaN and where
// the largest logit is not finite.
int32_t sample(std::span<const float> logits, const Sampling& sampling, int64_t position);

}  // namespace deltatrain::decode
