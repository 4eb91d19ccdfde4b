// From strings to the tokens that are scored.
//
// Source: the behaviour of lm-evaluation-harness 0.4.13, model class `hf`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace deltatrain::eval {

// The tokens whose log-probabilities are summed, and those before them.
struct TokenRequest {
  std::vector<int32_t> context;
  std::vector<int32_t> continuation;
  int64_t num_dropped = 0;  // tokens cut from the front of the context
};

// The two strings that are encoded: white space at the end of a context moves to its continuation.
struct SplitText {
  std::string context;
  std::string whole;
};
SplitText split_text(const std::string& context, const std::string& continuation);

// Encodes context and whole, and cuts the whole where the context's tokens end. An empty context
// becomes the token that starts texts (BOS, else EOS). FormatError naming `where` when context or
// continuation has no tokens.
TokenRequest encode_request(const text::Tokenizer& tokenizer, text::AddSpecialTokens add,
                            const std::string& context, const std::string& continuation,
                            const std::string& where);

// Cuts the context so that context and continuation hold max_length + 1 tokens at most. FormatError
// naming `where` when the continuation alone has more than max_length.
void truncate(TokenRequest& request, int64_t max_length, const std::string& where);

// A text's tokens in windows, so that each is predicted once: windows of max_length tokens, of
// which the last num_context or more are context. `prefix` is the context of the first.
std::vector<TokenRequest> rolling_windows(std::span<const int32_t> tokens, int32_t prefix,
                                          int64_t max_length, int64_t num_context = 1);

// BOS, else EOS. ConfigError when the tokenizer has neither.
int32_t prefix_token(const text::Tokenizer& tokenizer);

// The sum of log-probabilities as a bf16 run of the harness gives it: each rounded to bf16, summed
// in f32, the sum rounded to bf16.
double sum_rounded_to_bf16(std::span<const float> log_probabilities);
// To nearest, ties to even; NaN stays NaN.
float round_to_bf16(float value);

}  // namespace deltatrain::eval
