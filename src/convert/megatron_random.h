// States of the generators that Megatron saves and wants back, each as it is right after seeding.
// With dropout 0, as every model here has, they influence nothing; Megatron refuses to resume
// without them unless told not to load them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace deltatrain::convert {

struct MegatronGenerators {
  std::vector<int64_t> python;  // random.seed(seed): 624 words of MT19937 and the place in them
  std::vector<uint32_t> numpy;  // numpy.random.seed(seed): 624 words; the place is 624
  std::string torch;            // torch.manual_seed(seed): torch.get_rng_state(), 5056 bytes
  std::string cuda;             // torch.cuda.manual_seed(seed): seed and offset, 16 bytes
  // Megatron's named CUDA generators for one tensor and one expert rank.
  std::vector<std::pair<std::string, std::string>> tracker;
};

MegatronGenerators seeded_generators(uint64_t seed);

}  // namespace deltatrain::convert
