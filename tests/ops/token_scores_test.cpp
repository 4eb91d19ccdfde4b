#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "ops/token_scores.h"

namespace deltatrain::ops {
namespace {

using Rounding = TokenScores::Rounding;

struct Scores {
  std::vector<float> log_probabilities;
  std::vector<int32_t> is_greedy;
};

// On the CPU's backend, whose memory is the host's.
Scores scores_of(std::vector<float> logits, int64_t N, std::vector<int32_t> rows,
                 std::vector<int32_t> ids, Rounding rounding = Rounding::kNone) {
  const auto backend = backend::make_backend(DeviceKind::kCpu);
  Arena arena;
  const auto T = static_cast<int64_t>(rows.size());
  Scores scores{std::vector<float>(rows.size(), 7.0F), std::vector<int32_t>(rows.size(), 7)};
  token_scores(backend->context(arena, DType::kF32),
               {.logits_RN = Tensor(logits.data(), DType::kF32,
                                    {static_cast<int64_t>(logits.size()) / N, N}),
                .rows_T = Tensor(rows.data(), DType::kI32, {T}),
                .ids_T = Tensor(ids.data(), DType::kI32, {static_cast<int64_t>(ids.size())}),
                .log_probability_T = Tensor(scores.log_probabilities.data(), DType::kF32, {T}),
                .is_greedy_T = Tensor(scores.is_greedy.data(), DType::kI32, {T}),
                .rounding = rounding});
  return scores;
}

TEST(TokenScoresTest, GivesTheLogarithmsOfKnownProbabilities) {
  std::vector<float> logits;
  for (const double p : {0.5, 0.25, 0.125, 0.125}) {
    logits.push_back(static_cast<float>(std::log(p) + 3));  // any shift
  }
  for (const double p : {0.1, 0.2, 0.3, 0.4}) logits.push_back(static_cast<float>(std::log(p)));
  const Scores scores = scores_of(logits, 4, {1, 0, 0, 1}, {3, 0, 2, 0});
  const double want[] = {std::log(0.4), std::log(0.5), std::log(0.125), std::log(0.1)};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(scores.log_probabilities[i], want[i], 1e-6) << i;
  EXPECT_EQ(scores.is_greedy, (std::vector<int32_t>{1, 1, 0, 0}));
}

TEST(TokenScoresTest, TheFirstOfEqualsIsTheGreedyOne) {
  EXPECT_EQ(scores_of({1, 4, 4, 0}, 4, {0, 0, 0, 0}, {0, 1, 2, 3}).is_greedy,
            (std::vector<int32_t>{0, 1, 0, 0}));
}

// 20.0 and 20.05 are one number in bf16, whose steps are 1/8 there.
TEST(TokenScoresTest, RoundingMakesEqualsOfWhatDiffers) {
  const std::vector<float> logits = {20.0F, 20.05F, -20.0F};
  EXPECT_EQ(scores_of(logits, 3, {0, 0}, {0, 1}).is_greedy, (std::vector<int32_t>{0, 1}));
  const Scores rounded = scores_of(logits, 3, {0, 0, 0}, {0, 1, 2}, Rounding::kBf16);
  EXPECT_EQ(rounded.is_greedy, (std::vector<int32_t>{1, 0, 0}));
  // -ln 2 and -40 - ln 2 to the nearest numbers with 8 bits: 177 / 256 and 163 / 4.
  EXPECT_EQ(rounded.log_probabilities,
            (std::vector<float>{-177.0F / 256, -177.0F / 256, -163.0F / 4}));
}

TEST(TokenScoresTest, RowsWithoutASumAreNotNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  const Scores scores =
      scores_of({1, NAN, 0, inf, -inf, -inf, -inf, 0}, 2, {0, 1, 2, 3, 3}, {0, 1, 0, 0, 1});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(scores.log_probabilities[i])) << i;
    EXPECT_EQ(scores.is_greedy[i], 0) << i;
  }
  EXPECT_EQ(scores.log_probabilities[3], -inf);
  EXPECT_EQ(scores.log_probabilities[4], 0);
  EXPECT_EQ(scores.is_greedy[4], 1);
}

TEST(TokenScoresTest, RefusesUnequalNumbersOfRowsAndIds) {
  EXPECT_THROW(scores_of({1, 2}, 2, {0, 0}, {1}), ShapeError);
}

}  // namespace
}  // namespace deltatrain::ops
