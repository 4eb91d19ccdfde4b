// Counter-based random numbers: any value of a stream is reached at once, so a stopped run resumes
// with nothing but its step number.
//
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// The key is the seed, the counter is (index, stream),
// where a stream is named by text such as a tensor's name.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace deltatrain {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view stream_name, uint64_t step = 0);

  uint64_t bits(uint64_t index) const;   // 64 random bits
  double uniform(uint64_t index) const;  // [0, 1), 53 bits
  double normal(uint64_t index) const;   // mean 0, standard deviation 1 (Box-Muller)

  // In [0, bound); the bias is below bound / 2^64.
  uint64_t below(uint64_t index, uint64_t bound) const;

 private:
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
};

// FNV-1a, for naming streams; not for integrity.
uint64_t hash_text(std::string_view text);

}  // namespace deltatrain
