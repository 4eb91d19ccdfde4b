#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "decode/decoder.h"
#include "decode/sampler.h"
#include "model/initialization.h"
#include "support/devices.h"
#include "support/small_models.h"
#include "verify/tolerance.h"

namespace deltatrain::decode {
namespace {

using test::Backends;

std::vector<int32_t> prompt(int64_t length) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>((i * i * 7 + 3 * i) % 97));
  return ids;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

class DecoderTest : public testing::TestWithParam<std::tuple<ModelFamily, bool>> {};

// A prompt at once, in pieces of any size, and token by token gives the same logits.
TEST_P(DecoderTest, AnySplitOfAPromptGivesTheSameLogits) {
  const auto& [family, hybrid] = GetParam();
  Backends backends;
  const ModelConfig config = test::small_model(family, hybrid, 97);
  Decoder decoder(backends.context, backends.planning, config, 1, 600, 513);
  // Larger weights than at the start of training, so that every layer matters.
  initialize(decoder.context(), decoder.parameters(), 0.1, 5);
  for (const int64_t length : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 513}) {
    const std::vector<int32_t> ids = prompt(length);
    decoder.state().reset(decoder.context());
    const std::vector<float> whole = decoder.feed(std::vector<std::vector<int32_t>>{ids});
    for (const int64_t piece : {int64_t{1}, int64_t{2}, int64_t{17}, int64_t{64}}) {
      decoder.state().reset(decoder.context());
      std::vector<float> pieces;
      for (int64_t begin = 0; begin < length; begin += piece) {
        const std::vector<int32_t> part(ids.begin() + begin,
                                        ids.begin() + std::min(length, begin + piece));
        pieces = decoder.feed(std::vector<std::vector<int32_t>>{part});
      }
      EXPECT_LE(relative_difference(pieces, whole), verify::kPiecesF32)
          << "length " << length << " in pieces of " << piece;
      EXPECT_EQ(decoder.state().length(0), length);
    }
  }
}

// Sequences in slots do not see each other.
TEST_P(DecoderTest, SlotsAreIndependent) {
  const auto& [family, hybrid] = GetParam();
  Backends backends;
  const ModelConfig config = test::small_model(family, hybrid, 97);
  Decoder one(backends.context, backends.planning, config, 1, 64, 64);
  Decoder three(backends.context, backends.planning, config, 3, 64, 64);
  initialize(one.context(), one.parameters(), 0.1, 5);
  initialize(three.context(), three.parameters(), 0.1, 5);
  const std::vector<std::vector<int32_t>> rows = {prompt(20), std::vector<int32_t>(20, 5),
                                                  std::vector<int32_t>(20, 96)};
  const std::vector<float> together = three.feed(rows);
  for (size_t s = 0; s < rows.size(); ++s) {
    one.state().reset(one.context());
    const std::vector<float> alone = one.feed(std::vector<std::vector<int32_t>>{rows[s]});
    const std::vector<float> part(together.begin() + static_cast<std::ptrdiff_t>(s * 97),
                                  together.begin() + static_cast<std::ptrdiff_t>((s + 1) * 97));
    EXPECT_LE(relative_difference(part, alone), verify::kPiecesF32) << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderTest,
                         testing::Values(std::tuple{ModelFamily::kGatedDeltaNet, false},
                                         std::tuple{ModelFamily::kKda, false},
                                         std::tuple{ModelFamily::kGatedDeltaNet, true}));

// What a step gives depends on nothing but its sequence. On the devices that this machine has.
class DecoderStepTest
    : public testing::TestWithParam<std::tuple<ModelFamily, bool, DeviceKind, DType>> {
 protected:
  void SetUp() override {
    if (!test::has_device(std::get<2>(GetParam()))) GTEST_SKIP() << "no such device";
    backends_ = std::make_unique<Backends>(std::get<2>(GetParam()), std::get<3>(GetParam()));
  }
  std::unique_ptr<Decoder> decoder(int64_t num_sequences, int64_t max_rows, int64_t max_length = 64,
                                   double deviation = 0.1) const {
    const ModelConfig config =
        test::small_model(std::get<0>(GetParam()), std::get<1>(GetParam()), 97);
    auto made = std::make_unique<Decoder>(backends_->context, backends_->planning, config,
                                          num_sequences, max_length, max_rows);
    initialize(made->context(), made->parameters(), deviation, 5);
    return made;
  }

  std::unique_ptr<Backends> backends_;
};

// Whatever was carried over a cut: logits there and of the tokens that follow are those of the whole.
// With the weights that training starts from, each logit; with larger ones, so that every layer
// matters, all together.
TEST_P(DecoderStepTest, APromptInTwoPiecesGoesOnAsTheWholeDoes) {
  const bool is_bf16 = std::get<3>(GetParam()) == DType::kBF16;
  const double logit_bound = is_bf16 ? verify::kPiecesLogitBf16 : verify::kPiecesLogitF32;
  const double norm_bound = is_bf16 ? verify::kPiecesBf16 : verify::kPiecesF32;
  constexpr int64_t kLength = 512, kAfter = 4;
  const std::vector<int32_t> ids = prompt(kLength + kAfter);
  for (const double deviation : {0.02, 0.1}) {
    const auto decode = decoder(1, kLength, kLength + kAfter, deviation);
    const auto logits_after = [&](const std::vector<int64_t>& ends) {
      decode->state().reset(decode->context());
      std::vector<std::vector<float>> rows;
      int64_t begin = 0;
      for (const int64_t end : ends) {
        const std::vector<int32_t> piece(ids.begin() + begin, ids.begin() + end);
        rows.push_back(decode->feed(std::vector<std::vector<int32_t>>{piece}));
        begin = end;
      }
      return std::vector(rows.end() - kAfter - 1, rows.end());
    };
    std::vector<int64_t> tail, steps;
    for (int64_t t = kLength; t <= kLength + kAfter; ++t) tail.push_back(t);
    for (int64_t t = 1; t <= kLength + kAfter; ++t) steps.push_back(t);
    const auto whole = logits_after(tail);
    const auto expect_whole = [&](const std::vector<int64_t>& ends, const std::string& how) {
      const auto rows = logits_after(ends);
      for (size_t r = 0; r < whole.size(); ++r) {
        double worst = 0;
        for (size_t i = 0; i < whole[r].size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(rows[r][i]) - whole[r][i]));
        if (deviation == 0.02) {
          EXPECT_LE(worst, logit_bound) << how << ", " << r << " tokens after the prompt";
        } else {
          EXPECT_LE(relative_difference(rows[r], whole[r]), norm_bound)
              << how << ", " << r << " tokens after the prompt";
        }
      }
    };
    for (const int64_t cut : {1, 3, 63, 64, 65, 256}) {
      std::vector<int64_t> ends = {cut};
      ends.insert(ends.end(), tail.begin(), tail.end());
      expect_whole(ends, "cut at " + std::to_string(cut));
    }
    expect_whole(steps, "token by token");
  }
}

// Single steps may be recorded and replayed; a prompt in pieces of one row never is.
TEST_P(DecoderStepTest, RecordedStepsHaveTheBitsOfOthers) {
  const auto steps = decoder(1, 1), pieces = decoder(1, 1);
  for (const int64_t length : {6, 3}) {  // the second time the recording is there from the start
    const std::vector<int32_t> ids = prompt(length);
    steps->state().reset(steps->context());
    pieces->state().reset(pieces->context());
    std::vector<float> stepped;
    for (const int32_t id : ids) stepped = steps->feed(std::vector<std::vector<int32_t>>{{id}});
    EXPECT_EQ(stepped, pieces->feed(std::vector<std::vector<int32_t>>{ids}));
  }
}

TEST_P(DecoderStepTest, NeighboursDoNotChangeBits) {
  if (std::get<2>(GetParam()) == DeviceKind::kCpu || std::get<3>(GetParam()) == DType::kF32)
    GTEST_SKIP() << "products of libraries there: equal within rounding only";
  const auto one = decoder(1, 32);
  for (const int64_t num_sequences : {3, 16, 40}) {
    const auto many = decoder(num_sequences, 32);
    std::vector<std::vector<int32_t>> next(static_cast<size_t>(num_sequences), {3});
    next[1] = {7};
    one->state().reset(one->context());
    std::vector<std::vector<int32_t>> alone = {next[1]};
    for (int step = 0; step < 5; ++step) {
      const std::vector<float> together = many->feed(next);
      const std::vector<float> expected = one->feed(alone);
      EXPECT_EQ(std::vector<float>(together.begin() + 97, together.begin() + 2 * 97), expected)
          << num_sequences << " sequences, step " << step;
      for (size_t s = 0; s < next.size(); ++s)
        next[s] = {static_cast<int32_t>((17 * s + static_cast<size_t>(step)) % 97)};
      alone = {next[1]};
    }
  }
}

TEST_P(DecoderStepTest, GreedyChoicesAreTheLargestLogits) {
  const auto by_logits = decoder(3, 32), greedy = decoder(3, 32);
  std::vector<std::vector<int32_t>> next = {prompt(4), {9, 9, 9, 9}, {1, 2, 3, 4}};
  for (int step = 0; step < 6; ++step) {
    const std::vector<float> logits = by_logits->feed(next);
    const std::vector<int32_t> chosen = greedy->feed_greedily(next);
    ASSERT_EQ(chosen.size(), 3U);
    for (size_t s = 0; s < 3; ++s) {
      const std::span<const float> row(logits.data() + s * 97, 97);
      EXPECT_EQ(chosen[s], sample(row, {.temperature = 0}, 0));
      next[s] = {chosen[s]};
    }
  }
}

// Several steps at once choose what one after another does, and leave the same state.
TEST_P(DecoderStepTest, GoingOnGreedilyEqualsSingleSteps) {
  const auto single = decoder(3, 32), many = decoder(3, 32);
  const std::vector<std::vector<int32_t>> start = {prompt(4), {9, 9, 9, 9}, {1, 2, 3, 4}};
  std::vector<int32_t> next = single->feed_greedily(start);
  ASSERT_EQ(many->feed_greedily(start), next);
  std::vector<int32_t> many_next = next;
  for (const int64_t count : {1, 2, 17, 9, 3}) {
    const auto chosen = many->go_on_greedily(many_next, count);
    ASSERT_EQ(chosen.size(), static_cast<size_t>(count));
    for (const std::vector<int32_t>& step : chosen) {
      next =
          single->feed_greedily(std::vector<std::vector<int32_t>>{{next[0]}, {next[1]}, {next[2]}});
      EXPECT_EQ(step, next);
    }
    many_next = chosen.back();
    EXPECT_EQ(many->state().length(1), single->state().length(1));
  }
  const std::vector<std::vector<int32_t>> same = {{5}, {6}, {7}};
  EXPECT_EQ(many->feed(same), single->feed(same));
}

TEST_P(DecoderStepTest, GreedyRefusesWeightsThatAreNotNumbers) {
  const auto broken = decoder(1, 8);
  const Tensor weights = broken->parameters().flat_master();
  const std::vector<float> nan(static_cast<size_t>(weights.num_elements()),
                               std::numeric_limits<float>::quiet_NaN());
  broken->context().device->copy_to_device(weights.raw(), nan.data(), nan.size() * sizeof(float));
  broken->parameters().refresh_compute(broken->context());
  EXPECT_THROW(broken->feed_greedily(std::vector<std::vector<int32_t>>{{1}}), NumericError);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, DecoderStepTest,
    testing::Values(std::tuple{ModelFamily::kGatedDeltaNet, false, DeviceKind::kCpu, DType::kF32},
                    std::tuple{ModelFamily::kKda, false, DeviceKind::kCpu, DType::kF32},
                    std::tuple{ModelFamily::kGatedDeltaNet, true, DeviceKind::kCpu, DType::kF32},
                    std::tuple{ModelFamily::kGatedDeltaNet, false, DeviceKind::kCuda, DType::kBF16},
                    std::tuple{ModelFamily::kKda, false, DeviceKind::kCuda, DType::kBF16},
                    std::tuple{ModelFamily::kGatedDeltaNet, true, DeviceKind::kCuda, DType::kBF16},
                    std::tuple{ModelFamily::kKda, false, DeviceKind::kCuda, DType::kF32}));

TEST(DecoderStateTest, SizeOfDeltaRuleStatesDoesNotDependOnLength) {
  Backends backends;
  const Decoder short_one(backends.context, backends.planning,
                          test::small_model(ModelFamily::kKda, false, 97), 1, 16, 8);
  const Decoder long_one(backends.context, backends.planning,
                         test::small_model(ModelFamily::kKda, false, 97), 1, 1 << 20, 8);
  EXPECT_EQ(const_cast<Decoder&>(short_one).state().num_bytes(),
            const_cast<Decoder&>(long_one).state().num_bytes());
}

TEST(DecoderStateTest, RefusesToOutgrowAnAttentionCache) {
  Backends backends;
  Decoder decoder(backends.context, backends.planning,
                  test::small_model(ModelFamily::kGatedDeltaNet, true, 97), 1, 8, 8);
  decoder.feed(std::vector<std::vector<int32_t>>{prompt(8)});
  EXPECT_THROW(decoder.feed(std::vector<std::vector<int32_t>>{{1}}), ConfigError);
}

TEST(SamplerTest, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 0), 1);
}

TEST(SamplerTest, FrequenciesFollowTheProbabilities) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  std::vector<int> counts(3);
  const int n = 20000;
  for (int i = 0; i < n; ++i) ++counts[static_cast<size_t>(sample(logits, {.seed = 9}, i))];
  EXPECT_NEAR(counts[0], 0.5 * n, 5 * std::sqrt(0.25 * n));
  EXPECT_NEAR(counts[1], 0.3 * n, 5 * std::sqrt(0.21 * n));
  EXPECT_NEAR(counts[2], 0.2 * n, 5 * std::sqrt(0.16 * n));
}

TEST(SamplerTest, TopKAndTopPKeepTheMostLikely) {
  const std::vector<float> logits = {std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(sample(logits, {.top_k = 1, .seed = 1}, i), 1);
    EXPECT_EQ(sample(logits, {.top_p = 0.4, .seed = 1}, i), 1);
    EXPECT_NE(sample(logits, {.top_p = 0.7, .seed = 1}, i), 0);
    EXPECT_NE(sample(logits, {.top_k = 2, .seed = 1}, i), 0);
  }
}

TEST(SamplerTest, RefusesNaN) {
  EXPECT_THROW(sample(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()}, {}, 0),
               NumericError);
}

}  // namespace
}  // namespace deltatrain::decode
