#include "data/reference_random.h"

#include <array>
#include <bit>
#include <numeric>
#include <string>

#include "base/error.h"

namespace deltatrain::data {

namespace {

// Uniform in [0, largest]: draws under the smallest mask that covers `largest` until one fits.
template <class Next32, class Next64>
uint64_t masked_interval(uint64_t largest, Next32 next32, Next64 next64) {
  if (largest == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(largest);
  uint64_t value;
  if (largest <= 0xffffffffU) {
    do value = next32() & mask;
    while (value > largest);
  } else {
    do value = next64() & mask;
    while (value > largest);
  }
  return value;
}

// SeedSequence's hash, whose constant moves on with every use.
struct SeedHash {
  uint32_t constant;
  uint32_t multiplier;

  uint32_t operator()(uint32_t value) {
    value ^= constant;
    constant *= multiplier;
    value *= constant;
    return value ^ (value >> 16);
  }
};

uint32_t mix(uint32_t x, uint32_t y) {
  const uint32_t result = 0xca01f9ddU * x - 0x4973f715U * y;
  return result ^ (result >> 16);
}

}  // namespace

uint64_t NumpyRandomState::interval(uint64_t largest) {
  return masked_interval(
      largest, [this] { return next32(); },
      [this] {
        const uint64_t high = next32();
        return high << 32 | next32();
      });
}

std::vector<uint32_t> numpy_seed_sequence(uint64_t seed, int64_t count) {
  const std::array<uint32_t, 4> entropy{static_cast<uint32_t>(seed),
                                        static_cast<uint32_t>(seed >> 32), 0, 0};
  std::array<uint32_t, 4> pool{};
  SeedHash absorb{0x43b0d7e5U, 0x931e8875U};
  for (size_t i = 0; i < 4; ++i) pool[i] = absorb(entropy[i]);
  for (size_t from = 0; from < 4; ++from) {
    for (size_t to = 0; to < 4; ++to) {
      if (to != from) pool[to] = mix(pool[to], absorb(pool[from]));
    }
  }
  std::vector<uint32_t> words(static_cast<size_t>(count));
  SeedHash emit{0x8b51f9ddU, 0x58f38dedU};
  for (size_t i = 0; i < words.size(); ++i) words[i] = emit(pool[i % 4]);
  return words;
}

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const std::vector<uint32_t> words = numpy_seed_sequence(seed, 8);
  const auto word64 = [&](size_t k) {
    return static_cast<Uint128>(words[2 * k] | static_cast<uint64_t>(words[2 * k + 1]) << 32);
  };
  const Uint128 initial = word64(0) << 64 | word64(1);
  const Uint128 sequence = word64(2) << 64 | word64(3);
  increment_ = sequence << 1 | 1;
  next64();  // from state 0: the state becomes the increment
  state_ += initial;
  next64();
}

uint64_t NumpyGenerator::next64() {
  constexpr Uint128 kMultiplier =
      static_cast<Uint128>(0x2360ED051FC65DA4ULL) << 64 | 0x4385DF649FCCF645ULL;
  state_ = state_ * kMultiplier + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64);
  const auto low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint32_t NumpyGenerator::next32() {
  if (has_buffered_) {
    has_buffered_ = false;
    return buffered_;
  }
  const uint64_t word = next64();
  has_buffered_ = true;
  buffered_ = static_cast<uint32_t>(word >> 32);
  return static_cast<uint32_t>(word);
}

uint64_t NumpyGenerator::interval(uint64_t largest) {
  return masked_interval(
      largest, [this] { return next32(); }, [this] { return next64(); });
}

std::vector<int64_t> NumpyGenerator::permutation(int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[interval(i - 1)]);
  return order;
}

int32_t NumpyGenerator::integer(int32_t low, int32_t high) {
  const auto size =
      static_cast<uint32_t>(static_cast<int64_t>(high) - low);  // of the half-open range
  if (size == 1) return low;                                    // nothing is drawn
  uint64_t product = static_cast<uint64_t>(next32()) * size;
  if (static_cast<uint32_t>(product) < size) {
    const uint32_t threshold = (0U - size) % size;
    while (static_cast<uint32_t>(product) < threshold)
      product = static_cast<uint64_t>(next32()) * size;
  }
  return static_cast<int32_t>(low + static_cast<int64_t>(product >> 32));
}

std::vector<int64_t> torch_randperm(int64_t count, uint64_t seed) {
  if (count >= 214748364) {
    throw UnsupportedError(
        "torch's random permutation: expected fewer than 214748364 elements, got " +
        std::to_string(count));
  }
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    const size_t z = static_cast<size_t>(engine()) % (order.size() - i);
    std::swap(order[i], order[i + z]);
  }
  return order;
}

}  // namespace deltatrain::data
