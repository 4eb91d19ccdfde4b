// What the harness's client for completions servers makes of a response.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/tasks.h"

namespace deltatrain::eval {

struct CompletionScore {
  double log_likelihood = 0;
  bool is_greedy = true;
};

// One score per choice, in the order of their `index`. context_lengths[i] >= 1 tokens of prompt i
// are not scored, nor is its last entry, which belongs to the generated token. FormatError for a
// response of another shape.
std::vector<CompletionScore> parse_completions(const Json& response,
                                               std::span<const int64_t> context_lengths);

}  // namespace deltatrain::eval
