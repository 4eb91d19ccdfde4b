#include "text/pair_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace deltatrain::text {
namespace {

// Tokens with none, one, a few and very many pairs.
TEST(PairTableTest, EqualsAMap) {
  constexpr uint32_t kNumTokens = 100000;
  std::mt19937_64 random(1);
  const auto token = [&] { return static_cast<uint32_t>(random() % kNumTokens); };
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ranks;
  const auto add = [&](uint32_t left, uint32_t right) {
    ranks.emplace(std::pair(left, right), static_cast<uint32_t>(random()));
  };
  for (uint32_t left = 0; left < kNumTokens; left += 1 + token() % 40) {
    const uint64_t count = uint64_t{1} << random() % 9;
    for (uint64_t i = 0; i < count; ++i) add(left, token());
  }
  for (uint32_t right = 0; right < kNumTokens; right += 3) add(kNumTokens - 1, right);
  add(5, 0);
  add(5, kNumTokens - 1);
  std::vector<PairTable::Pair> pairs;
  for (const auto& [pair, rank] : ranks) pairs.push_back({pair.first, pair.second, rank});
  const PairTable table(pairs, kNumTokens);
  for (const auto& [pair, rank] : ranks)
    ASSERT_EQ(table.rank(table.block(pair.first), pair.second), rank);
  for (int i = 0; i < 1000000; ++i) {
    const std::pair pair(i % 2 == 0 ? token() : kNumTokens - 1, token());
    const auto found = ranks.find(pair);
    ASSERT_EQ(table.rank(table.block(pair.first), pair.second),
              found == ranks.end() ? PairTable::kNoRank : found->second);
  }
}

TEST(PairTableTest, TokensWithoutPairsHaveNoRank) {
  const PairTable table({}, 3);
  for (uint32_t left = 0; left < 3; ++left)
    EXPECT_EQ(table.rank(table.block(left), 2 - left), PairTable::kNoRank);
}

}  // namespace
}  // namespace deltatrain::text
