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

// `position` keys the random number, so that a choice depends on seed
// and position alone. top_k is applied before top_p; ties at a border
// are broken by the lower id. NumericError when no logit is finite.
int32_t sample(std::span<const float> logits, const Sampling& sampling, int64_t position);

}  // namespace deltatrain::decode
