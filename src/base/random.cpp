#include "base/random.h"

#include <cmath>
#include <numbers>

namespace deltatrain {

__extension__ typedef unsigned __int128 Uint128;

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

RandomStream::RandomStream(uint64_t seed, std::string_view stream_name, uint64_t step)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      stream_(hash_text(stream_name) ^ (step * 0x9E3779B97F4A7C15ULL)) {}

uint64_t RandomStream::bits(uint64_t index) const {
  const auto words =
      philox4x32({static_cast<uint32_t>(index >> 1), static_cast<uint32_t>(index >> 33),
                  static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                 key_);
  const size_t half = (index & 1U) * 2;
  return (uint64_t{words[half]} << 32) | words[half + 1];
}

double RandomStream::uniform(uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
}

double RandomStream::normal(uint64_t index) const {
  // A pair of values comes from a pair of uniforms:
  // even indices take the cosine, odd ones the sine.
  const uint64_t pair = index & ~uint64_t{1};
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(pair)));
  const double angle = 2.0 * std::numbers::pi * uniform(pair + 1);
  return radius * ((index & 1U) == 0 ? std::cos(angle) : std::sin(angle));
}

uint64_t RandomStream::below(uint64_t index, uint64_t bound) const {
  // The upper half of a 64 x 64 bit product.
  return static_cast<uint64_t>((static_cast<Uint128>(bits(index)) * bound) >> 64);
}

}  // namespace deltatrain
