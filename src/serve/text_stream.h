// Text of a sample while its tokens come: whole characters only, and nothing of a stop string.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace deltatrain::serve {

// The text of a prompt, special tokens spelled out, and where each token begins in it, in characters:
// as far as the prompt makes it certain, which leaves out a character that it breaks off.
struct PromptText {
  std::string text;
  std::vector<int64_t> offsets;
};
PromptText prompt_text(const text::Tokenizer& tokenizer, std::span<const int32_t> ids);

// Joined, what append() and finish() return is the text behind the prompt without special tokens, up
// to where the first stop string begins. Tokens are decoded behind those of the prompt, as some
// tokenizers treat the start of a text differently. For one thread.
class TextStream {
 public:
  TextStream(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stop_strings);

  // What a token makes certain; `is_silent` tokens, such as the end of the text, have no text.
  std::string append(int32_t id, bool is_silent);
  // The rest: no more tokens come.
  std::string finish();
  // Text that belongs to the prompt although only the end made it certain; after finish().
  const std::string& rest_of_prompt() const { return rest_of_prompt_; }
  // A stop string has come: there is no more text.
  bool is_stopped() const { return is_stopped_; }
  // Characters behind the prompt that tokens so far made certain, also those of a stop string: where
  // the next token begins.
  int64_t num_characters() const { return num_characters_; }

 private:
  std::string release(const std::string& text, bool is_last);

  text::Tokenizer tokenizer_;
  text::StreamDecoder decoder_;
  std::vector<std::string> stop_strings_;
  std::string held_prompt_;  // text of the prompt that the decoder still holds
  std::string rest_of_prompt_;
  std::string held_;  // may be the beginning of a stop string
  int64_t num_characters_ = 0;
  bool is_stopped_ = false;
};

}  // namespace deltatrain::serve
