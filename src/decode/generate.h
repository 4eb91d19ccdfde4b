// Text generation on top of a decoder: one prompt, tokens one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/decoder.h"
#include "decode/sampler.h"

namespace deltatrain::decode {

struct Generation {
  int64_t max_new_tokens = 100;
  Sampling sampling;
  std::optional<int32_t> stop_id;  // ends the text; not part of the result
};

// Feeds the prompt (at least one token) to a fresh sequence of `decoder`, made for one sequence,
// and returns the new tokens. `on_token` is called with each as it comes and may be empty;
// returning false stops.
std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt,
                              const Generation& generation,
                              const std::function<bool(int32_t)>& on_token = {});

}  // namespace deltatrain::decode
