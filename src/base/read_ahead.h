// Reading a mapped file as fast as its disk gives it.
#pragma once

#include <cstddef>
#include <span>

namespace deltatrain {

// Starts to read a part of a mapped file into memory and does not wait for it. Reading a map page
// by page otherwise waits for one small request after another.
void read_ahead(std::span<const std::byte> part);

}  // namespace deltatrain
