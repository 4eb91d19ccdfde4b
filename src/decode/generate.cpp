#include "decode/generate.h"

#include "base/error.h"

namespace deltatrain::decode {

std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt,
                              const Generation& generation,
                              const std::function<bool(int32_t)>& on_token) {
  if (prompt.empty())
    throw ConfigError(error_text("generate", "prompt", "at least one token", "none"));
  decoder.state().reset(decoder.context());
  std::vector<std::vector<int32_t>> next = {{prompt.begin(), prompt.end()}};
  std::vector<int32_t> tokens;
  while (static_cast<int64_t>(tokens.size()) < generation.max_new_tokens) {
    const int32_t token =
        generation.sampling.temperature <= 0
            ? decoder.feed_greedily(next).front()
            : sample(decoder.feed(next), generation.sampling, static_cast<int64_t>(tokens.size()));
    if (token == generation.stop_id) break;
    tokens.push_back(token);
    if (on_token && !on_token(token)) break;
    next[0] = {token};
  }
  return tokens;
}

}  // namespace deltatrain::decode
