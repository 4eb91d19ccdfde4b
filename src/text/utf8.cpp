#include "text/utf8.h"

#include <cstring>

namespace deltatrain::text {

namespace {

// Length of the well-formed sequence at `p` with `left` bytes available, or 0; *bad is then the length of
// the maximal ill-formed part.
size_t well_formed_length(const unsigned char* p, size_t left, size_t* bad) {
  const unsigned char first = p[0];
  *bad = 1;
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;  // bounds of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= left || p[i] < low || p[i] > high) return 0;
    *bad = i + 1;
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

}  // namespace

size_t find_ill_formed_utf8(std::string_view text, size_t from) {
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t i = from;
  while (i < size) {
    if (i + 8 <= size) {
      uint64_t word;
      std::memcpy(&word, data + i, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        i += 8;
        continue;
      }
    }
    size_t bad = 0;
    const size_t length = well_formed_length(data + i, size - i, &bad);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

size_t ill_formed_length(std::string_view text, size_t offset) {
  size_t bad = 0;
  well_formed_length(reinterpret_cast<const unsigned char*>(text.data()) + offset, text.size() - offset, &bad);
  return bad;
}

std::string replace_ill_formed_utf8(std::string_view text, int64_t* num_replaced) {
  std::string result;
  result.reserve(text.size() + 16);
  size_t from = 0;
  while (true) {
    const size_t at = find_ill_formed_utf8(text, from);
    result.append(text.substr(from, at == std::string_view::npos ? at : at - from));
    if (at == std::string_view::npos) return result;
    result += "\xef\xbf\xbd";
    if (num_replaced != nullptr) ++*num_replaced;
    from = at + ill_formed_length(text, at);
  }
}

void append_utf8(uint32_t code_point, std::string& text) {
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += static_cast<char>(0xc0 | code_point >> 6);
    text += static_cast<char>(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xe0 | code_point >> 12);
    text += static_cast<char>(0x80 | (code_point >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code_point & 0x3f));
  } else {
    text += static_cast<char>(0xf0 | code_point >> 18);
    text += static_cast<char>(0x80 | (code_point >> 12 & 0x3f));
    text += static_cast<char>(0x80 | (code_point >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code_point & 0x3f));
  }
}

}  // namespace deltatrain::text
