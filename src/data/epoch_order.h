// Orders that shuffle a data set anew in every epoch, as samplers
// of the reference stacks do. Each is a pure function from the number
// of a sample in the run to a row of the data set; a run never ends them.
//
// The samples of a run are numbered as data/loader.h says: with micro-batches of b rows on W ranks,
// sample g is row j = g mod b of rank r = (g / b) mod W in micro-batch t = g / (b W).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace deltatrain::data {

struct EpochShape {
  int64_t num_rows = 0;          // N
  int64_t micro_batch_size = 1;  // b
  int64_t num_ranks = 1;         // W
};

class EpochOrder {
 public:
  virtual ~EpochOrder() = default;
  virtual int64_t row(int64_t sample) const = 0;  // thread-safe
  virtual int64_t epoch_samples() const = 0;
};

// Megatron's random sampler ("cyclic", with data sharding): each rank has a contiguous share of N /
// (b W) whole micro-batches, shuffled by torch's randperm seeded with the number of the epoch. What
// is left over of N is never seen. ConfigError when N < b W.
std::unique_ptr<const EpochOrder> megatron_cyclic_order(const EpochShape& shape);

// What happens to rows that do not fill all ranks.
enum class LastRows : uint8_t { kPad, kDrop };

// torch's DistributedSampler over a data set that was shuffled once by numpy, which is how Flash
// Linear Attention trains: rank r takes every W-th of randperm(N, seed + epoch) from r on; row =
// P1[perm[q]] with P1 = default_rng(seed).permutation(N) and q = r + (t b + j) W. Padded with its
// start, or cut, to a multiple of W; what does not fill a micro-batch on each rank is left out.
std::unique_ptr<const EpochOrder> torch_distributed_order(const EpochShape& shape, uint64_t seed,
                                                          LastRows last_rows);

// The Hugging Face Trainer's: contiguous blocks of randperm(N, seed + epoch) over the same P1,
// dealt to the ranks in turn; the last round is filled up from the start.
std::unique_ptr<const EpochOrder> hf_trainer_order(const EpochShape& shape, uint64_t seed);

}  // namespace deltatrain::data
