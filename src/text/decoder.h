// Tokens back to text: the "decoder" of tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline.h"

namespace deltatrain::text {

struct DecoderStep {
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kBpe };
  Kind kind = Kind::kByteLevel;
  Pattern pattern;      // Replace
  std::string content;  // Replace; the character of Strip and Metaspace; the suffix of BPEDecoder
  int64_t start = 0, stop = 0;  // Strip
  PrependScheme prepend_scheme = PrependScheme::kAlways;  // Metaspace
};

// Joins the tokens as the steps say; without steps with blanks between them.
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

// The bytes of a byte-level token; a token with other characters stands for itself.
std::string byte_level_token_bytes(std::string_view token);

// The byte of a token such as <0x0A>, or -1.
int fallback_byte(std::string_view token);

// Bytes from the front that no further byte can change the reading of.
size_t settled_utf8_bytes(std::string_view bytes);

}  // namespace deltatrain::text
