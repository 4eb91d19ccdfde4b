#include "convert/megatron_random.h"

#include <array>
#include <cstring>

namespace deltatrain::convert {

namespace {

constexpr size_t kWords = 624;
using Words = std::array<uint32_t, kWords>;

// Offsets that Megatron adds to the seed for its named generators.
constexpr uint64_t kModelParallelOffset = 2718;
constexpr uint64_t kExpertParallelOffset = 1024;

// MT19937's seeding by one word and by an array of words (Matsumoto and Nishimura, 2002).
Words seeded(uint32_t seed) {
  Words words{};
  words[0] = seed;
  for (size_t i = 1; i < kWords; ++i) {
    words[i] = 1812433253U * (words[i - 1] ^ (words[i - 1] >> 30)) + static_cast<uint32_t>(i);
  }
  return words;
}

Words seeded(const std::vector<uint32_t>& key) {
  Words words = seeded(19650218U);
  size_t i = 1;
  size_t j = 0;
  const auto advance = [&words, &i] {
    if (++i < kWords) return;
    words[0] = words[kWords - 1];
    i = 1;
  };
  for (size_t k = 0; k < kWords; ++k) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1664525U)) + key[j] +
               static_cast<uint32_t>(j);
    advance();
    j = (j + 1) % key.size();
  }
  for (size_t k = 0; k + 1 < kWords; ++k) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1566083941U)) -
               static_cast<uint32_t>(i);
    advance();
  }
  words[0] = 0x80000000U;
  return words;
}

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

std::string cuda_state(uint64_t seed) {
  std::string state;
  put<uint64_t>(state, seed);
  put<uint64_t>(state, 0);  // offset
  return state;
}

// The bytes behind torch.get_rng_state() of the CPU: seed, numbers left before the next twist, a
// flag, the place, 624 words of 64 bits each, and cached normal values, of which there are none.
std::string torch_state(uint64_t seed) {
  std::string state;
  put<uint64_t>(state, seed);
  put<int32_t>(state, 1);
  put<int32_t>(state, 1);
  put<uint64_t>(state, 0);
  for (const uint32_t word : seeded(static_cast<uint32_t>(seed))) put<uint64_t>(state, word);
  state.append(3 * sizeof(double) + 2 * sizeof(int32_t), '\0');
  state.append(sizeof(float) + 4, '\0');
  return state;
}

}  // namespace

MegatronGenerators seeded_generators(uint64_t seed) {
  MegatronGenerators generators;
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  for (const uint32_t word : seeded(key)) generators.python.push_back(word);
  generators.python.push_back(kWords);
  const Words numpy = seeded(static_cast<uint32_t>(seed));
  generators.numpy.assign(numpy.begin(), numpy.end());
  generators.torch = torch_state(seed);
  generators.cuda = cuda_state(seed);
  generators.tracker = {{"data-parallel-rng", cuda_state(seed)},
                        {"model-parallel-rng", cuda_state(seed + kModelParallelOffset)},
                        {"expert-parallel-rng", cuda_state(seed + kExpertParallelOffset)}};
  return generators;
}

}  // namespace deltatrain::convert
