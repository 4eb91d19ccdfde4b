// The word patterns of well-known tokenizers, matched by hand in linear time.
//
// Each function matches its pattern at `p` and returns the end of the match. The patterns match some
// character at every position, so repeated calls cut a text into words without gaps.
//
//   kGpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   kLlama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//            |\s*[\r\n]+|\s+(?!\S)|\s+
//   kQwen2   kLlama3 with \p{N} for \p{N}{1,3}
//
// Case-insensitive matching is Unicode's: U+017F (long s) after an apostrophe is a contraction too.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>

#include <bit>
#endif
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace deltatrain::text {

enum class WordPattern { kGpt2, kLlama3, kQwen2 };

std::string_view word_pattern_text(WordPattern pattern);
std::optional<WordPattern> find_word_pattern(std::string_view regex);

class WordSplitter {
 public:
  WordSplitter();

  // The end of the word that starts at p < end; `end` is the end of the text. The text is well-formed UTF-8.
  template <WordPattern pattern>
  const char* next(const char* p, const char* end) const;

 private:
  enum Class : uint8_t { kLetter, kNumber, kSpace, kOther, kEnd };

  struct Char {
    Class kind;
    uint8_t bytes;
  };

  Char look(const char* p, const char* end) const {
    if (p >= end) return {kEnd, 0};
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) return {static_cast<Class>(ascii_[byte]), 1};
    const char* q = p;
    const uint32_t c = next_code_point(q);
    return {static_cast<Class>(class_of_[table_[c]]), static_cast<uint8_t>(q - p)};
  }
  // End of the run of letters that starts at p: sixteen characters at once where they are ASCII.
  const char* letters(const char* p, const char* end) const {
#if defined(__SSE2__)
    while (end - p >= 16) {
      const __m128i characters = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      const __m128i lower = _mm_or_si128(characters, _mm_set1_epi8(0x20));
      // 'a' .. 'z' become the 26 least signed bytes.
      const __m128i order = _mm_sub_epi8(lower, _mm_set1_epi8(static_cast<char>('a' + 128)));
      const __m128i found = _mm_cmplt_epi8(order, _mm_set1_epi8(-128 + 26));
      const int num_letters = std::countr_one(static_cast<unsigned>(_mm_movemask_epi8(found)));
      p += num_letters;
      if (num_letters == 16) continue;
      if (static_cast<unsigned char>(*p) < 0x80) return p;
      break;
    }
#endif
    return run(kLetter, p, end);
  }
  // End of the run of `kind` that starts at p.
  const char* run(Class kind, const char* p, const char* end) const {
    while (true) {
      while (p < end && static_cast<unsigned char>(*p) < 0x80) {
        if (ascii_[static_cast<unsigned char>(*p)] != kind) return p;
        ++p;
      }
      const Char c = look(p, end);
      if (c.kind != kind) return p;
      p += c.bytes;
    }
  }
  // The words of white space, of which the last character may belong to the next word; `line_ends` is
  // whether the pattern has \s*[\r\n]+.
  const char* white_space(const char* p, const char* end, bool line_ends) const;

  struct Lead {
    uint8_t mask, shift, bytes;
  };
  // How to read a character out of four bytes, by the five highest bits of the first.
  Lead leads_[32];
  uint8_t ascii_[128];
  uint8_t class_of_[256];  // Class of a property byte
  const uint8_t* table_;
};

namespace internal {
// Bytes of 's 't 're 've 'm 'll 'd at p, or 0.
int contraction_bytes(const char* p, const char* end, bool any_case);
}  // namespace internal

template <WordPattern pattern>
const char* WordSplitter::next(const char* p, const char* end) const {
  if (*p == '\'') {
    const int bytes = internal::contraction_bytes(p, end, pattern != WordPattern::kGpt2);
    if (bytes > 0) return p + bytes;
  }
  const Char first = look(p, end);
  const char* const behind = p + first.bytes;
  if constexpr (pattern == WordPattern::kGpt2) {
    Class kind = first.kind;
    const char* begin = behind;
    if (*p == ' ') {
      const Char second = look(behind, end);
      if (second.kind != kSpace && second.kind != kEnd) {
        kind = second.kind;
        begin = behind + second.bytes;
      }
    }
    if (kind == kLetter) return letters(begin, end);
    if (kind != kSpace) return run(kind, begin, end);
    return white_space(p, end, false);
  } else {
    if (first.kind == kLetter) return letters(behind, end);
    if (first.kind == kNumber) {
      const char* q = behind;
      if constexpr (pattern == WordPattern::kLlama3) {
        for (int i = 1; i < 3; ++i) {
          const Char c = look(q, end);
          if (c.kind != kNumber) break;
          q += c.bytes;
        }
      }
      return q;
    }
    const Char second = look(behind, end);
    if (second.kind == kLetter && *p != '\r' && *p != '\n') return letters(behind + second.bytes, end);
    if (first.kind == kOther || (*p == ' ' && second.kind == kOther)) {
      const char* q = run(kOther, behind, end);
      while (q < end && (*q == '\r' || *q == '\n')) ++q;
      return q;
    }
    return white_space(p, end, true);
  }
}

}  // namespace deltatrain::text
