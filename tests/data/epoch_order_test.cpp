// Expected values: the samplers written out as in torch (DistributedSampler), accelerate
// (BatchSamplerShard) and Megatron (random sampler with data sharding), over numpy's permutation
// and a randperm on numpy's MT19937.
#include "data/epoch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace deltatrain::data {
namespace {

using testing::ElementsAreArray;

constexpr EpochShape kShape{23, 2, 3};

std::vector<int64_t> rows(const EpochOrder& order, int64_t epochs) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < epochs * order.epoch_samples(); ++i) result.push_back(order.row(i));
  return result;
}

TEST(EpochOrderTest, TorchDistributedPadsWithTheStart) {
  EXPECT_THAT(rows(*torch_distributed_order(kShape, 42, LastRows::kPad), 2),
              ElementsAreArray({21, 2,  9,  17, 7,  18, 10, 15, 19, 11, 4,  13, 14, 20, 22, 8,
                                0,  16, 1,  5,  6,  3,  12, 21, 5,  1,  2,  4,  21, 6,  10, 12,
                                0,  19, 14, 13, 11, 9,  7,  8,  16, 17, 20, 3,  18, 15, 22, 5}));
}

TEST(EpochOrderTest, TorchDistributedDropsWhatIsLeftOver) {
  EXPECT_THAT(
      rows(*torch_distributed_order(kShape, 42, LastRows::kDrop), 2),
      ElementsAreArray({21, 2, 9, 17, 7,  18, 10, 15, 19, 11, 4,  13, 14, 20, 22, 8, 0,  16,
                        5,  1, 2, 4,  21, 6,  10, 12, 0,  19, 14, 13, 11, 9,  7,  8, 16, 17}));
}

TEST(EpochOrderTest, HfTrainerFillsTheLastRoundFromTheStart) {
  EXPECT_THAT(rows(*hf_trainer_order(kShape, 42), 2),
              ElementsAreArray({21, 9,  7,  2,  17, 18, 10, 19, 4, 15, 11, 13, 14, 22, 0,  20,
                                8,  16, 1,  6,  12, 5,  3,  21, 5, 2,  21, 1,  4,  6,  10, 0,
                                14, 12, 19, 13, 11, 7,  16, 9,  8, 17, 20, 18, 22, 3,  15, 5}));
}

TEST(EpochOrderTest, MegatronCyclicShufflesEachRanksShare) {
  EXPECT_THAT(rows(*megatron_cyclic_order(kShape), 3),
              ElementsAreArray({2, 5, 8, 11, 14, 17, 3, 0, 9, 6, 15, 12, 1, 4, 7,  10, 13, 16,
                                1, 5, 7, 11, 13, 17, 2, 0, 8, 6, 14, 12, 3, 4, 9,  10, 15, 16,
                                0, 3, 6, 9,  12, 15, 1, 2, 7, 8, 13, 14, 4, 5, 10, 11, 16, 17}));
}

// Over an epoch each row once, whatever the ranks, where they divide the rows.
TEST(EpochOrderTest, EveryRowOnceInAnEpoch) {
  for (const auto& [b, W] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {4, 1}, {2, 4}, {1, 8}, {8, 3}}) {
    const EpochShape shape{48, b, W};
    for (const auto& order :
         {torch_distributed_order(shape, 7, LastRows::kPad), hf_trainer_order(shape, 7)}) {
      std::vector<int64_t> once = rows(*order, 1);
      ASSERT_EQ(once.size(), 48U);
      std::sort(once.begin(), once.end());
      for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(once[static_cast<size_t>(i)], i);
    }
  }
}

// The rows that a global batch holds are the same for any number of ranks where a step takes them
// all at once.
TEST(EpochOrderTest, GlobalBatchHoldsTheSameRowsForAnyNumberOfRanks) {
  const auto batch = [](int64_t b, int64_t W, int64_t step) {
    const auto order = hf_trainer_order({64, b, W}, 42);
    std::vector<int64_t> result;
    for (int64_t i = 0; i < 8; ++i) result.push_back(order->row(8 * step + i));
    std::sort(result.begin(), result.end());
    return result;
  };
  for (int64_t step = 0; step < 8; ++step) {
    EXPECT_EQ(batch(8, 1, step), batch(2, 4, step));
    EXPECT_EQ(batch(8, 1, step), batch(1, 8, step));
  }
}

TEST(EpochOrderTest, RefusesFewerRowsThanOneRound) {
  EXPECT_THROW(megatron_cyclic_order({5, 2, 3}), ConfigError);
  EXPECT_THROW(torch_distributed_order({5, 2, 4}, 42, LastRows::kDrop), ConfigError);
}

}  // namespace
}  // namespace deltatrain::data
