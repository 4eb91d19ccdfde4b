#include "eval/tokens.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "text/case_mapping.h"

namespace deltatrain::eval {

SplitText split_text(const std::string& context, const std::string& continuation) {
  return {std::string(text::strip_back(context)), context + continuation};
}

int32_t prefix_token(const text::Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos_id()) return *bos;
  if (const auto eos = tokenizer.eos_id()) return *eos;
  throw ConfigError(
      error_text("tokenizer", "token that starts a text", "a BOS or EOS token", "neither"));
}

TokenRequest encode_request(const text::Tokenizer& tokenizer, text::AddSpecialTokens add,
                            const std::string& context, const std::string& continuation,
                            const std::string& where) {
  TokenRequest request;
  if (context.empty()) {
    const int32_t prefix = prefix_token(tokenizer);
    request.context = {prefix};
    request.continuation = tokenizer.encode(continuation, text::AddSpecialTokens::kNo);
    if (!request.continuation.empty() && request.continuation.front() == prefix)
      request.continuation.erase(request.continuation.begin());
  } else {
    const SplitText split = split_text(context, continuation);
    // A text that spells out its BOS gets no second one.
    const auto encode = [&](const std::string& text) {
      const auto bos = tokenizer.bos_id();
      const bool has_bos = bos && text.starts_with(tokenizer.token_text(*bos));
      return tokenizer.encode(text, has_bos ? text::AddSpecialTokens::kNo : add);
    };
    request.context = encode(split.context);
    const std::vector<int32_t> whole = encode(split.whole);
    const size_t cut = std::min(request.context.size(), whole.size());
    request.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end());
  }
  if (request.context.empty())
    throw FormatError(error_text(where, "context",
                                 "at least one token (the tokenizer's BOS would be one)", "none"));
  if (request.continuation.empty())
    throw FormatError(error_text(where, "continuation \"" + continuation + "\"",
                                 "at least one token of its own",
                                 "none: the last token of the context spans it"));
  return request;
}

void truncate(TokenRequest& request, int64_t max_length, const std::string& where) {
  const auto length = static_cast<int64_t>(request.continuation.size());
  if (length > max_length)
    throw FormatError(error_text(where, "continuation",
                                 "at most --max-length " + std::to_string(max_length) + " tokens",
                                 std::to_string(length)));
  const int64_t excess = static_cast<int64_t>(request.context.size()) + length - (max_length + 1);
  if (excess <= 0) return;
  request.context.erase(request.context.begin(), request.context.begin() + excess);
  request.num_dropped = excess;
}

std::vector<TokenRequest> rolling_windows(std::span<const int32_t> tokens, int32_t prefix,
                                          int64_t max_length, int64_t num_context) {
  std::vector<TokenRequest> windows;
  const auto n = static_cast<int64_t>(tokens.size());
  int64_t done = 0;
  while (done < n) {
    TokenRequest window;
    const int64_t count = std::min(n - done, done == 0 ? max_length : max_length - num_context + 1);
    const int64_t end = done + count;
    if (done == 0) {
      window.context = {prefix};
    } else {
      window.context.assign(tokens.begin() + std::max<int64_t>(0, end - max_length - 1),
                            tokens.begin() + done);
    }
    window.continuation.assign(tokens.begin() + done, tokens.begin() + end);
    windows.push_back(std::move(window));
    done = end;
  }
  return windows;
}

float round_to_bf16(float value) {
  if (std::isnan(value)) return value;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000U);
}

double sum_rounded_to_bf16(std::span<const float> log_probabilities) {
  float sum = 0;
  for (const float value : log_probabilities) sum += round_to_bf16(value);
  return static_cast<double>(round_to_bf16(sum));
}

}  // namespace deltatrain::eval
