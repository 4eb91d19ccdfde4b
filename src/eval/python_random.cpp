#include "eval/python_random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::eval {

namespace {

constexpr size_t kWords = std::mt19937::state_size;

// The state after init_by_array(key).
std::array<uint32_t, kWords> initial_state(const std::vector<uint32_t>& key) {
  std::array<uint32_t, kWords> state;
  state[0] = 19650218;
  for (size_t i = 1; i < kWords; ++i)
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + static_cast<uint32_t>(i);
  size_t i = 1, j = 0;
  const auto advance = [&] {
    if (++i >= kWords) {
      state[0] = state[kWords - 1];
      i = 1;
    }
  };
  for (size_t k = std::max(kWords, key.size()); k > 0; --k) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525U)) + key[j] +
               static_cast<uint32_t>(j);
    advance();
    if (++j >= key.size()) j = 0;
  }
  for (size_t k = kWords - 1; k > 0; --k) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941U)) -
               static_cast<uint32_t>(i);
    advance();
  }
  state[0] = 0x80000000U;
  return state;
}

}  // namespace

PythonRandom::PythonRandom(uint64_t seed) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  // The standard library's engine takes any state as text: the words, then the position.
  std::stringstream text;
  for (const uint32_t word : initial_state(key)) text << word << ' ';
  text << kWords;
  text >> engine_;
  DELTATRAIN_CHECK(!text.fail(), "state of the Mersenne Twister");
}

uint32_t PythonRandom::below(uint32_t n) {
  const int width = std::bit_width(n);
  uint32_t value = bits(width);
  while (value >= n) value = bits(width);
  return value;
}

double PythonRandom::uniform() {
  const uint32_t high = bits(27), low = bits(26);
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

std::vector<int64_t> PythonRandom::sample(int64_t population, int64_t count) {
  if (count < 0 || count > population) {
    throw ConfigError(error_text("few-shot examples", "number",
                                 "at most the " + std::to_string(population) + " there are",
                                 std::to_string(count)));
  }
  int64_t pool_size = 21;  // up to this population a list is kept, above it a set of those drawn
  if (count > 5) {
    // 4 ^ ceil(log_4(3 count)), in whole numbers.
    int64_t power = 1;
    while (power < 3 * count) power *= 4;
    pool_size += power;
  }
  std::vector<int64_t> drawn;
  if (population <= pool_size) {
    std::vector<int64_t> pool(static_cast<size_t>(population));
    std::iota(pool.begin(), pool.end(), int64_t{0});
    for (int64_t i = 0; i < count; ++i) {
      const size_t j = below(narrow<uint32_t>(population - i));
      drawn.push_back(pool[j]);
      pool[j] = pool[static_cast<size_t>(population - i - 1)];
    }
    return drawn;
  }
  std::unordered_set<int64_t> seen;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const int64_t j = below(narrow<uint32_t>(population));
    if (seen.insert(j).second) drawn.push_back(j);
  }
  return drawn;
}

}  // namespace deltatrain::eval
