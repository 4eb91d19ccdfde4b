#include "data/epoch_order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "data/reference_random.h"

namespace deltatrain::data {

namespace {

using Permutation = std::vector<uint32_t>;

Permutation compact(const std::vector<int64_t>& order) { return {order.begin(), order.end()}; }

// torch's permutations of `count` for the epochs asked for; the two latest are kept, since the
// threads that read ahead may stand in the next epoch already.
class EpochPermutations {
 public:
  EpochPermutations(int64_t count, uint64_t first_seed) : count_(count), first_seed_(first_seed) {}

  uint32_t at(int64_t epoch, int64_t position) const {
    const std::shared_ptr<const Permutation> order = of(epoch);
    return (*order)[static_cast<size_t>(position)];
  }

 private:
  // Shared with the threads that are reading in it when a later epoch takes its place.
  std::shared_ptr<const Permutation> of(int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[static_cast<size_t>(epoch % 2)];
    if (slot.order == nullptr || slot.epoch != epoch) {
      slot.order = std::make_shared<const Permutation>(
          compact(torch_randperm(count_, first_seed_ + static_cast<uint64_t>(epoch))));
      slot.epoch = epoch;
    }
    return slot.order;
  }

  struct Slot {
    int64_t epoch = -1;
    std::shared_ptr<const Permutation> order;
  };

  const int64_t count_;
  const uint64_t first_seed_;
  mutable std::mutex mutex_;
  mutable std::array<Slot, 2> slots_;
};

struct Place {
  int64_t t, r, j;
};

Place place_of(int64_t sample, const EpochShape& shape) {
  const int64_t b = shape.micro_batch_size;
  return {sample / (b * shape.num_ranks), sample / b % shape.num_ranks, sample % b};
}

void require_rows(const EpochShape& shape, int64_t epoch_samples, const char* order) {
  if (epoch_samples > 0) return;
  throw ConfigError(error_text(std::string("data order ") + order, "rows",
                               "at least micro_batch_size * ranks = " +
                                   std::to_string(shape.micro_batch_size * shape.num_ranks),
                               std::to_string(shape.num_rows)));
}

class MegatronCyclicOrder final : public EpochOrder {
 public:
  explicit MegatronCyclicOrder(const EpochShape& shape)
      : shape_(shape),
        share_(shape.num_rows / (shape.micro_batch_size * shape.num_ranks) *
               shape.micro_batch_size),
        permutations_(share_, 0) {
    require_rows(shape, share_, "megatron-cyclic");
  }

  int64_t epoch_samples() const override { return share_ * shape_.num_ranks; }

  int64_t row(int64_t sample) const override {
    const Place place = place_of(sample % epoch_samples(), shape_);
    return place.r * share_ +
           permutations_.at(sample / epoch_samples(), place.t * shape_.micro_batch_size + place.j);
  }

 private:
  const EpochShape shape_;
  const int64_t share_;  // rows of one rank
  const EpochPermutations permutations_;
};

class TorchDistributedOrder final : public EpochOrder {
 public:
  TorchDistributedOrder(const EpochShape& shape, uint64_t seed, LastRows last_rows)
      : shape_(shape),
        first_shuffle_(compact(NumpyGenerator(seed).permutation(shape.num_rows))),
        permutations_(shape.num_rows, seed) {
    const int64_t N = shape.num_rows;
    const int64_t W = shape.num_ranks;
    const bool drop = last_rows == LastRows::kDrop && N % W != 0;
    const int64_t rank_rows = drop ? std::max<int64_t>(0, divide_up(N - W, W)) : divide_up(N, W);
    epoch_samples_ = rank_rows / shape.micro_batch_size * shape.micro_batch_size * W;
    require_rows(shape, epoch_samples_, "torch-distributed");
  }

  int64_t epoch_samples() const override { return epoch_samples_; }

  int64_t row(int64_t sample) const override {
    const Place place = place_of(sample % epoch_samples_, shape_);
    const int64_t q = place.r + (place.t * shape_.micro_batch_size + place.j) * shape_.num_ranks;
    return first_shuffle_[permutations_.at(sample / epoch_samples_, q % shape_.num_rows)];
  }

 private:
  const EpochShape shape_;
  const Permutation first_shuffle_;
  const EpochPermutations permutations_;
  int64_t epoch_samples_ = 0;
};

class HfTrainerOrder final : public EpochOrder {
 public:
  HfTrainerOrder(const EpochShape& shape, uint64_t seed)
      : first_shuffle_(compact(NumpyGenerator(seed).permutation(shape.num_rows))),
        permutations_(shape.num_rows, seed),
        num_rows_(shape.num_rows),
        epoch_samples_(round_up(shape.num_rows, shape.micro_batch_size * shape.num_ranks)) {
    require_rows(shape, num_rows_, "hf-trainer");
  }

  int64_t epoch_samples() const override { return epoch_samples_; }

  int64_t row(int64_t sample) const override {
    return first_shuffle_[permutations_.at(sample / epoch_samples_,
                                           sample % epoch_samples_ % num_rows_)];
  }

 private:
  const Permutation first_shuffle_;
  const EpochPermutations permutations_;
  const int64_t num_rows_;
  const int64_t epoch_samples_;
};

}  // namespace

std::unique_ptr<const EpochOrder> megatron_cyclic_order(const EpochShape& shape) {
  return std::make_unique<MegatronCyclicOrder>(shape);
}

std::unique_ptr<const EpochOrder> torch_distributed_order(const EpochShape& shape, uint64_t seed,
                                                          LastRows last_rows) {
  return std::make_unique<TorchDistributedOrder>(shape, seed, last_rows);
}

std::unique_ptr<const EpochOrder> hf_trainer_order(const EpochShape& shape, uint64_t seed) {
  return std::make_unique<HfTrainerOrder>(shape, seed);
}

}  // namespace deltatrain::data
