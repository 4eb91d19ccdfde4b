// Python's `random.Random`, number for number: the harness draws few-shot examples and bootstrap
// samples with it.
//
// MT19937, seeded with the 32-bit words of the seed through init_by_array. Source: the algorithm's
// authors (M. Matsumoto, T. Nishimura, 2002) and the documented behaviour of Python's module.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace deltatrain::eval {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  // getrandbits(count), 1 <= count <= 32.
  uint32_t bits(int count) { return static_cast<uint32_t>(engine_()) >> (32 - count); }
  // A whole number in [0, n), 1 <= n < 2^32, by rejection.
  uint32_t below(uint32_t n);
  // random(): 53 bits in [0, 1).
  double uniform();
  // sample(range(population), count) in draw order. ConfigError when count > population.
  std::vector<int64_t> sample(int64_t population, int64_t count);

 private:
  std::mt19937 engine_;
};

}  // namespace deltatrain::eval
