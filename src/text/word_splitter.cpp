#include "text/word_splitter.h"

namespace deltatrain::text {

namespace {
constexpr std::string_view kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};
}  // namespace

std::string_view word_pattern_text(WordPattern pattern) { return kPatterns[static_cast<int>(pattern)]; }

std::optional<WordPattern> find_word_pattern(std::string_view regex) {
  for (const WordPattern pattern : {WordPattern::kGpt2, WordPattern::kLlama3, WordPattern::kQwen2}) {
    if (regex == word_pattern_text(pattern)) return pattern;
  }
  return std::nullopt;
}

WordSplitter::WordSplitter() : table_(internal::property_table()) {
  const CodePoints code_points;
  const auto classify = [&](uint32_t c) -> uint8_t {
    if (code_points.is_letter(c)) return kLetter;
    if (code_points.is_number(c)) return kNumber;
    if (code_points.is_white_space(c)) return kSpace;
    return kOther;
  };
  for (uint32_t c = 0; c < kNumCodePoints; ++c) class_of_[table_[c]] = classify(c);
  for (uint32_t c = 0; c < 128; ++c) ascii_[c] = classify(c);
  for (size_t first = 0; first < 32; ++first) {
    leads_[first] = first < 16   ? Lead{0x7f, 18, 1}
                    : first < 28 ? Lead{0x1f, 12, 2}
                    : first < 30 ? Lead{0x0f, 6, 3}
                                 : Lead{0x07, 0, 4};
  }
}

const char* WordSplitter::white_space(const char* p, const char* end, bool line_ends) const {
  const char* q = p;
  const char* last = p;               // start of the last character
  const char* behind_line = nullptr;  // end of the last line feed or carriage return
  const auto take = [&](size_t bytes) {
    last = q;
    q += bytes;
    if (*last == '\r' || *last == '\n') behind_line = q;
  };
  // Characters of any length without a branch on it.
  while (end - q >= 4) {
    const auto byte = [&](int i) {
      return static_cast<uint32_t>(static_cast<unsigned char>(q[i]));
    };
    const Lead& lead = leads_[byte(0) >> 3];
    const uint32_t c = ((byte(0) & lead.mask) << 18 | (byte(1) & 0x3f) << 12 |
                        (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f)) >>
                       lead.shift;
    if (class_of_[table_[c]] != kSpace) break;
    take(lead.bytes);
  }
  while (true) {
    const Char c = look(q, end);
    if (c.kind != kSpace) break;
    take(c.bytes);
  }
  if (line_ends && behind_line != nullptr) return behind_line;
  if (q == end || last == p) return q;
  return last;
}

namespace internal {

int contraction_bytes(const char* p, const char* end, bool any_case) {
  const auto letter = [&](int i) -> int {
    if (end - p <= i) return 0;
    const auto c = static_cast<unsigned char>(p[i]);
    return any_case && c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  };
  const int first = letter(1);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    case 0xc5:
      return any_case && letter(2) == 0xbf ? 3 : 0;  // U+017F folds to s
    default:
      return 0;
  }
}

}  // namespace internal

}  // namespace deltatrain::text
