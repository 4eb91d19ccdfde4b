// One pass over the line, sixteen bytes of a string at a time, without a tree or events. A line that holds no text under the
// key, or anything that this pass does not vouch for, goes to the plain reader, which says what it is.
#if defined(__SSE2__)
#include <emmintrin.h>

#include <bit>
#endif
#include <array>
#include <optional>
#include <utility>

#include "prepare/json_field.h"
#include "text/utf8.h"

namespace deltatrain::prepare {

namespace {

// What is written or read at once; as much may be written behind the kept text, and read behind the line.
constexpr size_t kStep = 16;
static_assert(kStep <= kJsonPadding);

// What an escape of one letter stands for; 0: none.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  constexpr std::pair<char, char> kPairs[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                              {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};
  for (const auto& [letter, character] : kPairs) escapes[static_cast<size_t>(letter)] = character;
  return escapes;
}();

// Of hexadecimal digits; for what is none a value that four of them cannot reach.
constexpr std::array<uint32_t, 256> kHexValues = [] {
  std::array<uint32_t, 256> values{};
  values.fill(0x10000);
  for (uint32_t i = 0; i < 10; ++i) values['0' + i] = i;
  for (uint32_t i = 0; i < 6; ++i) values['a' + i] = values['A' + i] = 10 + i;
  return values;
}();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads one line; functions return false where it is no JSON or too odd to tell.
class LineScan {
 public:
  // Strings that are kept go to `kept`, end to end: as many bytes as the line has and kStep more.
  LineScan(std::string_view line, std::string_view key, char* kept)
      : at_(line.data()), end_(line.data() + line.size()), key_(key), kept_(kept) {}

  std::optional<std::string_view> text() {
    skip_space();
    if (!take('{') || !outermost_members()) return std::nullopt;
    skip_space();
    if (at_ != end_) return std::nullopt;
    return text_;
  }

 private:
  // The next byte, or 0, which has no place in JSON.
  char peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  bool outermost_members() {
    skip_space();
    if (take('}')) return true;
    do {
      skip_space();
      const char* const key = kept_;
      if (!take('"') || !string<true>()) return false;
      const bool is_wanted = std::string_view(key, static_cast<size_t>(kept_ - key)) == key_;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (!is_wanted) {
        if (!value(1)) return false;
      } else if (take('"')) {
        const char* const text = kept_;
        if (!string<true>()) return false;
        text_ = std::string_view(text, static_cast<size_t>(kept_ - text));
      } else {
        return false;
      }
      skip_space();
    } while (take(','));
    return take('}');
  }

  // `depth` arrays and objects are open around the value.
  bool value(int depth) {
    switch (peek()) {
      case '"':
        ++at_;
        return string<false>();
      case '{':
        ++at_;
        return depth < kMaxJsonDepth && members(depth + 1);
      case '[':
        ++at_;
        return depth < kMaxJsonDepth && elements(depth + 1);
      case 't':
        return literal("true");
      case 'f':
        return literal("false");
      case 'n':
        return literal("null");
      default:
        return number();
    }
  }
  bool members(int depth) {
    skip_space();
    if (take('}')) return true;
    do {
      skip_space();
      if (!take('"') || !string<false>()) return false;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (!value(depth)) return false;
      skip_space();
    } while (take(','));
    return take('}');
  }
  bool elements(int depth) {
    skip_space();
    if (take(']')) return true;
    do {
      skip_space();
      if (!value(depth)) return false;
      skip_space();
    } while (take(','));
    return take(']');
  }

  bool literal(std::string_view name) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(name)) return false;
    at_ += name.size();
    return true;
  }

  bool digits() {
    const char* const first = at_;
    while (is_digit(peek())) ++at_;
    return at_ > first;
  }
  // Nothing near the largest double, where readers differ: below 10^(200 + 99).
  bool number() {
    constexpr std::ptrdiff_t kMaxLength = 200, kMaxExponentDigits = 2;
    const char* const first = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (at_ - first > kMaxLength) return false;
    if (!take('e') && !take('E')) return true;
    if (!take('-')) take('+');
    const char* const exponent = at_;
    return digits() && at_ - exponent <= kMaxExponentDigits;
  }

  // From behind the opening quote to behind the closing one. kKeeps: its characters go to kept_.
  template <bool kKeeps>
  bool string() {
    while (true) {
      plain_characters<kKeeps>();
      if (take('"')) return true;
      if (peek() != '\\') return false;
      while (take('\\')) {
        if (!escape<kKeeps>()) return false;
      }
    }
  }

  // Up to the first quote, backslash or control character, or past the end.
  template <bool kKeeps>
  void plain_characters() {
#if defined(__SSE2__)
    for (; at_ < end_; at_ += kStep) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_));
      if constexpr (kKeeps) _mm_storeu_si128(reinterpret_cast<__m128i*>(kept_), bytes);
      const __m128i is_quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
      const __m128i is_backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
      const __m128i is_control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
      const auto ends = static_cast<unsigned>(
          _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(is_quote, is_backslash), is_control)));
      if (ends != 0) {
        const int count = std::countr_zero(ends);
        at_ += count;
        if constexpr (kKeeps) kept_ += count;
        return;
      }
      if constexpr (kKeeps) kept_ += kStep;
    }
#else
    for (; at_ < end_; ++at_) {
      const auto byte = static_cast<unsigned char>(*at_);
      if (byte == '"' || byte == '\\' || byte < 0x20) return;
      if constexpr (kKeeps) *kept_++ = *at_;
    }
#endif
  }

  // Behind the backslash.
  template <bool kKeeps>
  bool escape() {
    if (take('u')) return unicode_escape<kKeeps>();
    const char character = kEscapes[static_cast<unsigned char>(peek())];
    if (character == '\0') return false;
    ++at_;
    if constexpr (kKeeps) *kept_++ = character;
    return true;
  }

  // Behind \u. Halves of a pair of surrogates alone stand for nothing.
  template <bool kKeeps>
  bool unicode_escape() {
    uint32_t code_point = 0;
    if (!four_digits(code_point)) return false;
    if (code_point >= 0xd800 && code_point < 0xe000) {
      uint32_t low = 0;
      if (code_point >= 0xdc00 || !take('\\') || !take('u') || !four_digits(low)) return false;
      if (low < 0xdc00 || low >= 0xe000) return false;
      code_point = 0x10000 + ((code_point - 0xd800) << 10) + (low - 0xdc00);
    }
    if constexpr (kKeeps) kept_ = text::write_utf8(code_point, kept_);
    return true;
  }
  bool four_digits(uint32_t& value) {
    if (end_ - at_ < 4) return false;
    const auto digit = [&](int i) { return kHexValues[static_cast<unsigned char>(at_[i])]; };
    value = digit(0) << 12 | digit(1) << 8 | digit(2) << 4 | digit(3);
    at_ += 4;
    return value <= 0xffff;
  }

  const char* at_;
  const char* const end_;
  const std::string_view key_;
  char* kept_;
  std::optional<std::string_view> text_;
};

class ScanningJsonFieldReader final : public JsonFieldReader {
 public:
  JsonField read(std::string_view line, std::string_view key) override {
    if (text::find_ill_formed_utf8(line) == std::string_view::npos) {
      const size_t needed = line.size() + kStep;
      if (needed > capacity_) {
        capacity_ = needed + needed / 4;
        kept_ = std::make_unique_for_overwrite<char[]>(capacity_);
      }
      if (const auto text = LineScan(line, key, kept_.get()).text())
        return {.outcome = JsonField::Outcome::kText, .text = *text};
    }
    return plain_->read(line, key);
  }

  void release() override {
    kept_.reset();
    capacity_ = 0;
    plain_->release();
  }

 private:
  std::unique_ptr<JsonFieldReader> plain_ = make_plain_json_field_reader();
  std::unique_ptr<char[]> kept_;
  size_t capacity_ = 0;
};

}  // namespace

std::unique_ptr<JsonFieldReader> make_scanning_json_field_reader() {
  return std::make_unique<ScanningJsonFieldReader>();
}

}  // namespace deltatrain::prepare
