#include <array>

#include "formats/event_file.h"

namespace deltatrain::formats {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kCastagnoli = 0x82f63b78;  // bits reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t masked_crc32c(std::span<const char> bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

}  // namespace deltatrain::formats
