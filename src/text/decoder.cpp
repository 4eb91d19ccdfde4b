#include "text/decoder.h"

#include <algorithm>
#include <charconv>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> result;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const begin = p;
    next_code_point(p);
    result.emplace_back(begin, static_cast<size_t>(p - begin));
  }
  return result;
}

std::string strip(const DecoderStep& step, std::string_view token) {
  const auto characters = characters_of(token);
  size_t begin = 0, end = characters.size();
  const auto limit = [](int64_t count, size_t size) { return std::min(static_cast<size_t>(count), size); };
  while (begin < limit(step.start, characters.size()) && characters[begin] == step.content) ++begin;
  while (characters.size() - end < limit(step.stop, characters.size()) && characters[end - 1] == step.content) --end;
  std::string result;
  for (size_t i = begin; i < end; ++i) result += characters[i];
  return result;
}

std::string replace(const DecoderStep& step, const std::string& token) {
  std::string result;
  for (const Match& match : step.pattern.find(token)) {
    result += match.is_match ? std::string_view(step.content)
                             : std::string_view(token).substr(match.begin, match.end - match.begin);
  }
  return result;
}

std::vector<std::string> byte_fallback(std::vector<std::string> tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_ill_formed_utf8(bytes) == std::string::npos) {
      result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), std::string(kReplacement));
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  return result;
}

std::string join(const std::vector<std::string>& tokens) {
  std::string result;
  for (const std::string& token : tokens) result += token;
  return result;
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result += text.substr(done, at - done);
    result += to;
    done = at + from.size();
  }
  result += text.substr(done);
  return result;
}

}  // namespace

std::string byte_level_token_bytes(std::string_view token) {
  if (auto bytes = printable_to_bytes(token)) return *std::move(bytes);
  return std::string(token);
}

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  int value = -1;
  const std::string_view digits = token.substr(3, 2);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + 2, value, 16);
  return error == std::errc() && end == digits.data() + 2 && value >= 0 ? value : -1;
}

size_t settled_utf8_bytes(std::string_view bytes) {
  // At most the last three bytes can be the start of an unfinished character.
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (length <= back) break;
    // Unfinished only if what is there is one ill-formed part that a further byte could complete.
    const std::string_view tail = bytes.substr(bytes.size() - back);
    if (byte < 0xc2 || byte > 0xf4 || ill_formed_length(tail, 0) != back) break;
    return bytes.size() - back;
  }
  return bytes.size();
}

std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens) {
  if (steps.empty()) {
    std::string result;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) result += ' ';
      result += tokens[i];
    }
    return result;
  }
  for (const DecoderStep& step : steps) {
    switch (step.kind) {
      case DecoderStep::Kind::kByteLevel: {
        std::string bytes;
        for (const std::string& token : tokens) bytes += byte_level_token_bytes(token);
        tokens.assign(1, replace_ill_formed_utf8(bytes));
        break;
      }
      case DecoderStep::Kind::kReplace:
        for (std::string& token : tokens) token = replace(step, token);
        break;
      case DecoderStep::Kind::kByteFallback:
        tokens = byte_fallback(std::move(tokens));
        break;
      case DecoderStep::Kind::kFuse:
        tokens.assign(1, join(tokens));
        break;
      case DecoderStep::Kind::kStrip:
        for (std::string& token : tokens) token = strip(step, token);
        break;
      case DecoderStep::Kind::kMetaspace:
        for (size_t i = 0; i < tokens.size(); ++i) {
          const bool dropped = i == 0 && step.prepend_scheme != PrependScheme::kNever;
          tokens[i] = replace_text(tokens[i], step.content, dropped ? "" : " ");
        }
        break;
      case DecoderStep::Kind::kBpe:
        for (size_t i = 0; i < tokens.size(); ++i) {
          tokens[i] = replace_text(tokens[i], step.content, i + 1 == tokens.size() ? "" : " ");
        }
        break;
    }
  }
  return join(tokens);
}

}  // namespace deltatrain::text
