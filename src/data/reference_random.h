// The random orders that the reference libraries give, bit for bit. Everything of the program's own
// uses base/random.h; these exist because a data order must equal that of another system.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace deltatrain::data {

// numpy.random.RandomState(seed).shuffle: MT19937 seeded as init_genrand does, and for each i from
// the last element down a swap with j <= i, drawn by masked rejection.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(uint32_t seed) : engine_(seed) {}

  uint32_t next32() { return static_cast<uint32_t>(engine_()); }

  template <class T>
  void shuffle(std::span<T> values) {
    for (uint64_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[interval(i - 1)]);
  }

 private:
  uint64_t interval(uint64_t largest);  // uniform in [0, largest]

  std::mt19937 engine_;
};

__extension__ using Uint128 = unsigned __int128;

// numpy.random.default_rng(seed): PCG64 (XSL-RR 128/64) seeded through SeedSequence.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);

  uint64_t next64();
  uint32_t next32();  // the low half of a fresh word first, then its high half

  std::vector<int64_t> permutation(int64_t count);

  // integers(low, high) for a range below 2^32 (dtype int32): Lemire's method on next32().
  int32_t integer(int32_t low, int32_t high);

 private:
  uint64_t interval(uint64_t largest);

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
  uint32_t buffered_ = 0;
  bool has_buffered_ = false;
};

// numpy.random.SeedSequence(seed).generate_state(count), as 32-bit words.
std::vector<uint32_t> numpy_seed_sequence(uint64_t seed, int64_t count);

// torch.randperm(count, generator=manual_seed(seed)) on the CPU. UnsupportedError from 214,748,364
// elements, where torch changes its method.
std::vector<int64_t> torch_randperm(int64_t count, uint64_t seed);

}  // namespace deltatrain::data
