#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace deltatrain::text {

namespace {

struct Map {
  std::array<uint16_t, 256> printable;
  std::array<int16_t, 0x144> byte;

  Map() {
    byte.fill(-1);
    uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
      printable[b] = visible ? static_cast<uint16_t>(b) : next++;
      byte[printable[b]] = static_cast<int16_t>(b);
    }
  }
};

const Map& map() {
  static const Map instance;
  return instance;
}

}  // namespace

uint32_t byte_to_printable(uint8_t byte) { return map().printable[byte]; }

int printable_to_byte(uint32_t code_point) {
  return code_point < map().byte.size() ? map().byte[code_point] : -1;
}

std::string bytes_to_printable(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(byte_to_printable(static_cast<uint8_t>(c)), text);
  return text;
}

std::optional<std::string> printable_to_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const int byte = printable_to_byte(next_code_point(p));
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace deltatrain::text
