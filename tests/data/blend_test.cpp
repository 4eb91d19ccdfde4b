#include "data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace deltatrain::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::pair<int, int>> pairs(const BlendOrder& order) {
  std::vector<std::pair<int, int>> result;
  for (size_t k = 0; k < order.source.size(); ++k) {
    result.emplace_back(order.source[k], static_cast<int>(order.sample[k]));
  }
  return result;
}

using Pairs = std::vector<std::pair<int, int>>;

TEST(BlendOrderTest, FollowsTheWeightsGreedily) {
  EXPECT_EQ(pairs(blend_order(normalized({3, 7}), 12)), (Pairs{{1, 0},
                                                               {0, 0},
                                                               {1, 1},
                                                               {1, 2},
                                                               {0, 1},
                                                               {1, 3},
                                                               {1, 4},
                                                               {0, 2},
                                                               {1, 5},
                                                               {1, 6},
                                                               {0, 3},
                                                               {1, 7}}));
  EXPECT_EQ(pairs(blend_order(normalized({1, 1, 2}), 12)), (Pairs{{2, 0},
                                                                  {0, 0},
                                                                  {1, 0},
                                                                  {2, 1},
                                                                  {0, 1},
                                                                  {2, 2},
                                                                  {1, 1},
                                                                  {2, 3},
                                                                  {0, 2},
                                                                  {2, 4},
                                                                  {1, 2},
                                                                  {2, 5}}));
}

TEST(BlendOrderTest, ExhaustiveOrderTakesEverySampleOnce) {
  const BlendOrder order = exhaustive_blend_order(std::vector<int64_t>{3, 1, 5});
  std::vector<int64_t> counts(3, 0);
  for (size_t k = 0; k < order.source.size(); ++k) {
    EXPECT_EQ(order.sample[k], counts[static_cast<size_t>(order.source[k])]++);
  }
  EXPECT_THAT(counts, ElementsAre(3, 1, 5));
}

TEST(BlendPathTest, ReadsPrefixesWithAndWithoutWeights) {
  const BlendPath one = parse_blend_path("data/corpus");
  EXPECT_THAT(one.prefixes, ElementsAre("data/corpus"));
  EXPECT_THAT(one.weights, IsEmpty());
  EXPECT_THAT(parse_blend_path(" a  b\tc ").prefixes, ElementsAre("a", "b", "c"));
  const BlendPath two = parse_blend_path("0.3 a 7e-1 b");
  EXPECT_THAT(two.prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(two.weights, ElementsAre(0.3, 0.7));
  EXPECT_THAT(parse_blend_path("a b").prefixes, ElementsAre("a", "b"));
}

TEST(BlendPathTest, RefusesWeightsThatAreNone) {
  const auto message = [](const std::string& text) {
    try {
      parse_blend_path(text);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message("0.3 a x b"), HasSubstr("weight of b: expected a number above 0, got 'x'"));
  EXPECT_THAT(message("0 a 1 b"), HasSubstr("weight of a: expected a number above 0, got '0'"));
  EXPECT_THAT(message("nan a 1 b"), HasSubstr("got 'nan'"));
  EXPECT_THAT(message(" "), HasSubstr("an empty text"));
}

TEST(SplitTest, GivesSharesAsBorders) {
  const auto parts = parse_split("98,2");
  ASSERT_TRUE(parts[0] && parts[1]);
  EXPECT_FALSE(parts[2].has_value());
  EXPECT_EQ(parts[0]->first, 0);
  EXPECT_EQ(parts[0]->second, 0.98);
  EXPECT_EQ(parts[1]->second, 1.0);
  EXPECT_FALSE(parse_split("0,1,1")[0].has_value());
  // Halves go to the even neighbour: 2.5 to 2, 3.5 to 4.
  EXPECT_EQ(split_sequences({0, 0.5}, 5), std::make_pair(int64_t{0}, int64_t{2}));
  EXPECT_EQ(split_sequences({0, 0.5}, 7), std::make_pair(int64_t{0}, int64_t{4}));
}

TEST(SplitTest, RefusesWhatIsNoShares) {
  for (const char* text : {"", "a,b", "1,2,3,4", "0,0,0", "1,-1", "1,,x"}) {
    EXPECT_THROW(parse_split(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace deltatrain::data
