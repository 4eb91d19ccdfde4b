#include "text/merge_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace deltatrain::text {
namespace {

// As full as the table gets, with ids of all sizes and pairs that are listed again: each has the rank of its last
// mention, and no other pair has one.
TEST(MergeTableTest, EqualsAMap) {
  std::mt19937_64 random(1);
  const auto id = [&] { return static_cast<int32_t>(random() >> (40 + random() % 16)); };
  std::map<std::pair<int32_t, int32_t>, uint32_t> ranks;
  std::vector<Merge> merges;
  for (uint32_t rank = 0; rank < 43690; ++rank) {
    Merge merge{id(), id(), static_cast<int32_t>(rank)};
    if (rank % 100 == 99) {
      merge.left = merges[rank / 2].left;
      merge.right = merges[rank / 2].right;
    }
    merges.push_back(merge);
    ranks[{merge.left, merge.right}] = rank;
  }
  const MergeTable table(merges);
  for (const auto& [pair, rank] : ranks) {
    ASSERT_EQ(table.rank(pair.first, pair.second), rank);
    ASSERT_EQ(table.merge(rank).result, static_cast<int32_t>(rank));
  }
  for (int i = 0; i < 300000; ++i) {
    // Neighbours of pairs that are there, turned round or not.
    const Merge& merge = merges[random() % merges.size()];
    const auto pair = i % 2 == 0 ? std::pair(merge.right, merge.left) : std::pair(merge.left, id());
    const auto found = ranks.find(pair);
    ASSERT_EQ(table.rank(pair.first, pair.second), found == ranks.end() ? MergeTable::kNoRank : found->second);
  }
}

TEST(MergeTableTest, AnEmptyTableKnowsNoPair) {
  EXPECT_EQ(MergeTable().rank(0, 0), MergeTable::kNoRank);
  EXPECT_EQ(MergeTable().rank(MergeTable::kMaxId, MergeTable::kMaxId), MergeTable::kNoRank);
}

}  // namespace
}  // namespace deltatrain::text
