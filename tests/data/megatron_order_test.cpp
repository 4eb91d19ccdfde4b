// Expected values: an independent implementation of GPTDataset's index construction, driven by
// numpy's own RandomState.
#include "data/megatron_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"

namespace deltatrain::data {

void PrintTo(const SampleStart& start, std::ostream* out) {
  *out << '(' << start.document << ',' << start.offset << ')';
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<int32_t> kLengths{5, 3, 8, 1, 7, 4, 6, 2, 9, 5};

using Starts = std::vector<SampleStart>;

TEST(MegatronOrderTest, OneEpoch) {
  const MegatronOrder order = megatron_order(kLengths, 0, 4, 10, 1234);
  EXPECT_EQ(order.num_epochs, 1);
  EXPECT_EQ(order.num_samples(), 12);
  EXPECT_THAT(order.document_order, ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_EQ(order.sample_starts, (Starts{{0, 0},
                                         {1, 2},
                                         {1, 6},
                                         {2, 2},
                                         {3, 1},
                                         {4, 2},
                                         {5, 1},
                                         {5, 5},
                                         {6, 0},
                                         {6, 4},
                                         {7, 1},
                                         {8, 1},
                                         {8, 5}}));
  EXPECT_THAT(order.sample_order, ElementsAre(3, 11, 2, 1, 7, 5, 4, 0, 8, 6, 10, 9));
}

TEST(MegatronOrderTest, SeparateLastEpoch) {
  const MegatronOrder order = megatron_order(kLengths, 0, 4, 20, 1234);
  EXPECT_EQ(order.num_epochs, 2);
  EXPECT_TRUE(order.separate_last_epoch);
  EXPECT_EQ(order.num_samples(), 24);
  EXPECT_THAT(order.document_order,
              ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3, 7, 3, 5, 1, 4, 8, 0, 2, 6, 9));
  EXPECT_EQ(Starts(order.sample_starts.end() - 13, order.sample_starts.end()), (Starts{{8, 5},
                                                                                       {11, 0},
                                                                                       {12, 3},
                                                                                       {14, 0},
                                                                                       {14, 4},
                                                                                       {15, 1},
                                                                                       {15, 5},
                                                                                       {16, 0},
                                                                                       {16, 4},
                                                                                       {17, 3},
                                                                                       {17, 7},
                                                                                       {18, 3},
                                                                                       {19, 1}}));
  EXPECT_THAT(order.sample_order, ElementsAre(8, 1, 9, 4, 3, 7, 11, 10, 5, 0, 2, 6, 22, 17, 20, 18,
                                              19, 13, 16, 21, 14, 15, 12, 23));
}

TEST(MegatronOrderTest, SeparateLastEpochWithAnotherSeed) {
  const MegatronOrder order = megatron_order(kLengths, 0, 4, 16, 42);
  EXPECT_TRUE(order.separate_last_epoch);
  EXPECT_THAT(order.document_order,
              ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6, 0, 1, 8, 5, 3, 4, 7, 9, 6, 2));
  EXPECT_THAT(order.sample_order, ElementsAre(8, 2, 9, 6, 0, 11, 3, 10, 5, 7, 1, 4, 13, 17, 16, 22,
                                              21, 19, 18, 15, 14, 12, 20, 23));
}

TEST(MegatronOrderTest, LongerSamples) {
  const MegatronOrder order = megatron_order(kLengths, 0, 8, 6, 42);
  EXPECT_THAT(order.document_order, ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
  EXPECT_EQ(order.sample_starts, (Starts{{0, 0}, {0, 8}, {3, 0}, {5, 1}, {6, 1}, {7, 4}, {9, 4}}));
  EXPECT_THAT(order.sample_order, ElementsAre(3, 1, 0, 4, 5, 2));
}

TEST(MegatronOrderTest, DocumentsAsLongAsSamples) {
  const MegatronOrder order = megatron_order(std::vector<int32_t>(6, 4), 0, 4, 5, 42);
  EXPECT_THAT(order.document_order, ElementsAre(0, 1, 5, 2, 4, 3));
  EXPECT_EQ(order.sample_starts, (Starts{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}}));
  EXPECT_THAT(order.sample_order, ElementsAre(3, 1, 2, 0, 4));
}

TEST(MegatronOrderTest, NoNumberOfSamplesMeansOneEpoch) {
  EXPECT_EQ(megatron_order(kLengths, 0, 4, 0, 1).num_samples(), 12);
}

// A part of a file keeps the numbers that its sequences have in the file.
TEST(MegatronOrderTest, KeepsTheNumbersOfASplit) {
  const MegatronOrder order = megatron_order(std::span(kLengths).subspan(8), 8, 4, 0, 7);
  EXPECT_THAT(order.document_order, testing::UnorderedElementsAre(8, 9));
}

TEST(MegatronOrderTest, RefusesTooFewTokensAndLargeSeeds) {
  const auto message = [](auto call) {
    try {
      call();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message([] { megatron_order(kLengths, 0, 50, 1, 1); }),
              HasSubstr("expected at least seq_length + 1 = 51 tokens, got 50"));
  EXPECT_THAT(message([] { megatron_order(kLengths, 0, 4, 1, uint64_t{1} << 32); }),
              HasSubstr("seed: expected one below 2^32, got 4294967296"));
}

}  // namespace
}  // namespace deltatrain::data
