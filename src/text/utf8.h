// Well-formed UTF-8: finding what is not, replacing it, and stepping through what is.
//
// "Ill-formed" is the Unicode Standard's (table 3-7): stray continuation bytes, overlong forms, surrogates,
// values past U+10FFFF and cut sequences. A maximal ill-formed part is replaced by one U+FFFD, as Python's
// errors="replace" and Rust's from_utf8_lossy do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deltatrain::text {

// Offset of the first byte of the first ill-formed part, or npos.
size_t find_ill_formed_utf8(std::string_view text, size_t from = 0);

// Bytes of the maximal ill-formed part that starts at `offset` (as found above): at least 1, at most 3.
size_t ill_formed_length(std::string_view text, size_t offset);

// The text with U+FFFD for each ill-formed part; adds the number of parts to *num_replaced if given.
std::string replace_ill_formed_utf8(std::string_view text, int64_t* num_replaced = nullptr);

// Writes the UTF-8 form, 1 to 4 bytes, and returns its end. `code_point` must be a scalar value (not a surrogate, at most
// 0x10ffff).
inline char* write_utf8(uint32_t code_point, char* to) {
  const auto following = [&](int shift) { return static_cast<char>(0x80 | (code_point >> shift & 0x3f)); };
  if (code_point < 0x80) {
    *to++ = static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    *to++ = static_cast<char>(0xc0 | code_point >> 6);
    *to++ = following(0);
  } else if (code_point < 0x10000) {
    *to++ = static_cast<char>(0xe0 | code_point >> 12);
    *to++ = following(6);
    *to++ = following(0);
  } else {
    *to++ = static_cast<char>(0xf0 | code_point >> 18);
    *to++ = following(12);
    *to++ = following(6);
    *to++ = following(0);
  }
  return to;
}

// The same at the end of a text.
void append_utf8(uint32_t code_point, std::string& text);

// Reads one code point of well-formed text at `p` and advances `p`.
inline uint32_t next_code_point(const char*& p) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) {
    p += 1;
    return first;
  }
  if (first < 0xe0) {
    const uint32_t value = (first & 0x1f) << 6 | (byte(1) & 0x3f);
    p += 2;
    return value;
  }
  if (first < 0xf0) {
    const uint32_t value = (first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    p += 3;
    return value;
  }
  const uint32_t value = (first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  p += 4;
  return value;
}

}  // namespace deltatrain::text
