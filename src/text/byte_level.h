// The printable stand-ins of bytes in byte-level vocabularies: a byte that is a visible Latin-1 character
// stands for itself, the other 68 are U+0100 and up, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deltatrain::text {

// The code point that stands for a byte.
uint32_t byte_to_printable(uint8_t byte);
// The byte that a code point stands for, or -1.
int printable_to_byte(uint32_t code_point);

std::string bytes_to_printable(std::string_view bytes);
// Nothing if some character of the well-formed text stands for no byte.
std::optional<std::string> printable_to_bytes(std::string_view text);

}  // namespace deltatrain::text
