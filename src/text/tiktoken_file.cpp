// Llama 3's original tokenizer.model: a line for each token, its bytes in base64 and its rank. The words and
// the special tokens are not in the file, so only the vocabulary that is known to go with them is read.

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/merges_of_tokens.h"
#include "text/tokenizer_model.h"

namespace deltatrain::text {

namespace {

constexpr int64_t kLlama3Tokens = 128000;

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// False if the text is not base64 with its padding.
bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const int padding = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
    uint32_t value = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int digit = static_cast<int>(k) >= 4 - padding ? 0 : base64_digit(text[i + k]);
      if (digit < 0) return false;
      value = value << 6 | static_cast<uint32_t>(digit);
    }
    for (int k = 0; k < 3 - padding; ++k) bytes += static_cast<char>(value >> (16 - 8 * k));
  }
  return true;
}

// One line's token and rank; false if it has another form.
bool parse_line(std::string_view line, std::string& token, int64_t& rank) {
  const size_t blank = line.find(' ');
  if (blank == std::string_view::npos || !decode_base64(line.substr(0, blank), token)) return false;
  const std::string_view digits = line.substr(blank + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return error == std::errc() && end == digits.data() + digits.size() && rank >= 0;
}

// The names are those of Llama 3.1 and later in Hugging Face's files.
std::vector<std::string> llama3_special_tokens() {
  const std::vector<std::string> named = {"<|begin_of_text|>",    "<|end_of_text|>",
                                          "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                                          "<|finetune_right_pad_id|>",    "<|reserved_special_token_2|>",
                                          "<|start_header_id|>",  "<|end_header_id|>",
                                          "<|eom_id|>",           "<|eot_id|>",
                                          "<|python_tag|>"};
  std::vector<std::string> tokens = named;
  for (int reserved = 3; tokens.size() < 256; ++reserved) {
    tokens.push_back("<|reserved_special_token_" + std::to_string(reserved) + "|>");
  }
  return tokens;
}

}  // namespace

bool is_tiktoken_file(std::string_view bytes) {
  std::string token;
  int64_t rank = 0;
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), size_t{4096}));
  return parse_line(line, token, rank);
}

TokenizerParts read_tiktoken_file(std::string_view bytes, const std::string& where) {
  TokenizerParts parts;
  parts.where = where;
  TokenTable raw;
  std::string token;
  size_t begin = 0;
  for (int64_t number = 1; begin < bytes.size(); ++number) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = bytes.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const std::string at = where + ":" + std::to_string(number);
    int64_t rank = 0;
    if (!parse_line(line, token, rank) || rank >= kLlama3Tokens * 8) {
      throw FormatError(error_text(at, "", "a token in base64 and its rank", "\"" + std::string(line.substr(0, 40)) + "\""));
    }
    const auto id = static_cast<int32_t>(rank);
    if (!raw.insert(token, id)) throw FormatError(error_text(at, "", "a token and a rank of its own", "one seen before"));
    parts.tokens.insert(bytes_to_printable(token), id);
  }
  if (raw.size() != kLlama3Tokens || raw.end_id() != kLlama3Tokens) {
    throw UnsupportedError(error_text(where, "vocabulary", "the 128000 tokens of Llama 3", std::to_string(raw.size())) +
                           " (words and special tokens are not in the file, and only Llama 3's are known)");
  }
  std::vector<TokenToMake> wanted;
  for (int32_t id = 0; id < raw.end_id(); ++id) wanted.push_back({raw[id], id, -static_cast<double>(id)});
  parts.merges = merges_of_tokens(std::move(wanted), raw, false);
  parts.settings.ignore_merges = true;

  for (const std::string& content : llama3_special_tokens()) {
    AddedToken added;
    added.content = content;
    added.id = static_cast<int32_t>(kLlama3Tokens + static_cast<int64_t>(parts.added_tokens.size()));
    added.special = true;
    parts.added_tokens.push_back(added);
  }
  PreTokenizerStep words;
  words.pattern.is_literal = false;
  words.pattern.word_pattern = WordPattern::kLlama3;
  words.pattern.text = word_pattern_text(WordPattern::kLlama3);
  PreTokenizerStep to_bytes;
  to_bytes.kind = PreTokenizerStep::Kind::kByteLevel;
  parts.pre_tokenizer = {words, to_bytes};
  parts.decoder = {DecoderStep{}};
  parts.named.bos = static_cast<int32_t>(kLlama3Tokens);
  parts.named.eos = static_cast<int32_t>(kLlama3Tokens + 1);
  parts.ids_in_front = {static_cast<int32_t>(kLlama3Tokens)};
  return parts;
}

}  // namespace deltatrain::text
