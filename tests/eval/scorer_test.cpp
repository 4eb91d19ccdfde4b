#include "eval/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "decode/decoder.h"
#include "model/initialization.h"
#include "support/devices.h"
#include "support/small_models.h"

namespace deltatrain::eval {
namespace {

using test::Backends;

constexpr int32_t kVocabulary = 211;

std::vector<int32_t> random_ids(std::mt19937& random, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % kVocabulary));
  return ids;
}

// Contexts and continuations of many lengths, several with one context, some longer than a pass of
// 256 rows.
std::vector<TokenRequest> requests() {
  std::mt19937 random(7);
  std::vector<TokenRequest> result;
  for (const int64_t length :
       {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{17}, int64_t{63}, int64_t{64}, int64_t{65},
        int64_t{130}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{600}}) {
    const std::vector<int32_t> context = random_ids(random, length);
    for (const int64_t count : {int64_t{1}, int64_t{4}, 1 + length % 40})
      result.push_back({context, random_ids(random, count)});
  }
  result.push_back({random_ids(random, 1), random_ids(random, 300)});
  return result;
}

std::unique_ptr<Scorer> scorer_of(const Backends& backends, const ModelConfig& config,
                                  int64_t batch_size,
                                  ScorePrecision precision = ScorePrecision::kF32) {
  auto scorer = std::make_unique<Scorer>(backends.context, backends.planning, config,
                                         ScorerOptions{batch_size, 700, precision});
  initialize(scorer->context(), scorer->parameters(), 0.1, 5);
  return scorer;
}

bool same_bits(const Score& a, const Score& b) {
  return std::memcmp(&a.log_likelihood, &b.log_likelihood, sizeof(double)) == 0 &&
         a.is_greedy == b.is_greedy;
}

class ScorerTest : public testing::TestWithParam<std::tuple<ModelFamily, bool>> {
 protected:
  ModelConfig config() const {
    return test::small_model(std::get<0>(GetParam()), std::get<1>(GetParam()), kVocabulary);
  }
};

void expect_scores_independent(const Backends& backends, const ModelConfig& config) {
  const std::vector<TokenRequest> all = requests();
  const std::vector<Score> want = scorer_of(backends, config, 16)->score(all, silent_reporter());
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(11);
  for (const int64_t batch_size : {int64_t{1}, int64_t{3}, int64_t{64}}) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<TokenRequest> shuffled;
    for (const size_t i : order) shuffled.push_back(all[i]);
    const auto got = scorer_of(backends, config, batch_size)->score(shuffled, silent_reporter());
    for (size_t i = 0; i < order.size(); ++i)
      EXPECT_TRUE(same_bits(got[i], want[order[i]]))
          << "request " << order[i] << ", batch size " << batch_size;
  }
  const auto scorer = scorer_of(backends, config, 5);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(same_bits(scorer->score({&all[i], 1}, silent_reporter())[0], want[i]))
        << "request " << i << " alone";
}

TEST_P(ScorerTest, ScoresDoNotDependOnBatchOrderOrNeighbours) {
  expect_scores_independent(Backends(DeviceKind::kCpu), config());
}

TEST_P(ScorerTest, ScoresDoNotDependOnBatchOrderOrNeighboursOnCuda) {
  if (!test::has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no such device";
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Backends backends(DeviceKind::kCuda, dtype, /*gemm_uniform_rows=*/true);
    expect_scores_independent(backends, config());
    // f32 against f32: other orders of sums, and many tokens.
    if (dtype != DType::kF32) continue;
    const std::vector<TokenRequest> all = requests();
    const auto got = scorer_of(backends, config(), 0)->score(all, silent_reporter());
    const auto want =
        scorer_of(Backends(DeviceKind::kCpu), config(), 0)->score(all, silent_reporter());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(got[i].log_likelihood, want[i].log_likelihood,
                  1e-5 * std::fabs(want[i].log_likelihood))
          << "request " << i;
      EXPECT_EQ(got[i].is_greedy, want[i].is_greedy) << "request " << i;
    }
  }
}

// Token by token in f64, through the plain loops that define the operators.
TEST_P(ScorerTest, ScoresEqualTheReferenceRecurrence) {
  const Backends cpu(DeviceKind::kCpu), reference(DeviceKind::kReference);
  const std::vector<TokenRequest> all = requests();
  const auto scorer = scorer_of(cpu, config(), 0);
  const std::vector<Score> got = scorer->score(all, silent_reporter());
  decode::Decoder decoder(reference.context, reference.planning, config(), 1, 1000, 1);
  initialize(decoder.context(), decoder.parameters(), 0.1, 5);
  for (size_t i = 0; i < all.size(); i += 4) {
    decoder.state().reset(decoder.context());
    double want = 0;
    bool greedy = true;
    std::vector<std::vector<int32_t>> next = {{}};
    std::vector<float> logits;
    for (const int32_t id : all[i].context) {
      next[0] = {id};
      logits = decoder.feed(next);
    }
    for (const int32_t id : all[i].continuation) {
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      want += static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum);
      greedy = greedy && std::max_element(logits.begin(), logits.end()) - logits.begin() == id;
      next[0] = {id};
      logits = decoder.feed(next);
    }
    EXPECT_NEAR(got[i].log_likelihood, want, 1e-5 * std::fabs(want)) << "request " << i;
    EXPECT_EQ(got[i].is_greedy, greedy) << "request " << i;
  }
}

TEST_P(ScorerTest, TheMostLikelyContinuationIsGreedy) {
  const Backends backends(DeviceKind::kCpu);
  const auto scorer = scorer_of(backends, config(), 0);
  decode::Decoder decoder(backends.context, backends.planning, config(), 1, 100, 64);
  initialize(decoder.context(), decoder.parameters(), 0.1, 5);
  TokenRequest request{{3, 1, 4, 1, 5}, {}};
  std::vector<float> logits = decoder.feed(std::vector<std::vector<int32_t>>{request.context});
  for (int i = 0; i < 5; ++i) {
    request.continuation.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    logits = decoder.feed(std::vector<std::vector<int32_t>>{{request.continuation.back()}});
  }
  TokenRequest other = request;
  other.continuation[2] = (other.continuation[2] + 1) % kVocabulary;
  const auto scores = scorer->score(std::vector<TokenRequest>{request, other}, silent_reporter());
  EXPECT_TRUE(scores[0].is_greedy);
  EXPECT_FALSE(scores[1].is_greedy);
  EXPECT_GT(scores[0].log_likelihood, scores[1].log_likelihood);
}

INSTANTIATE_TEST_SUITE_P(Families, ScorerTest,
                         testing::Values(std::tuple{ModelFamily::kGatedDeltaNet, false},
                                         std::tuple{ModelFamily::kKda, false},
                                         std::tuple{ModelFamily::kGatedDeltaNet, true}));

TEST(ScorerWorkTest, ASharedContextGoesThroughOnce) {
  const Backends backends(DeviceKind::kCpu);
  const auto scorer =
      scorer_of(backends, test::small_model(ModelFamily::kGatedDeltaNet, false, kVocabulary), 4);
  std::mt19937 random(3);
  const std::vector<int32_t> context = random_ids(random, 50);
  std::vector<TokenRequest> four;
  for (int64_t i = 0; i < 4; ++i) four.push_back({context, random_ids(random, 11)});
  scorer->score(four, silent_reporter());
  EXPECT_EQ(scorer->work().num_contexts, 1);
  EXPECT_EQ(scorer->work().tokens, 50 + 4 * 10);
  EXPECT_EQ(scorer->work().tokens_unshared, 4 * 60);
  for (TokenRequest& request : four) request.continuation.resize(1);
  scorer->score(four, silent_reporter());
  EXPECT_EQ(scorer->work().tokens, 50);
}

TEST(ScorerPrecisionTest, Bf16ScoresAreRoundedSumsOfRoundedNumbers) {
  const Backends backends(DeviceKind::kCpu);
  const ModelConfig config = test::small_model(ModelFamily::kKda, false, kVocabulary);
  const std::vector<TokenRequest> all = requests();
  const auto exact = scorer_of(backends, config, 0)->score(all, silent_reporter());
  const auto rounded =
      scorer_of(backends, config, 0, ScorePrecision::kBF16)->score(all, silent_reporter());
  int different = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto value = static_cast<float>(rounded[i].log_likelihood);
    EXPECT_EQ(value, round_to_bf16(value));
    // Half a step of the sum, and of each term and its logit: 2^-9 relative each.
    EXPECT_NEAR(rounded[i].log_likelihood, exact[i].log_likelihood,
                std::fabs(exact[i].log_likelihood) * 3.0 / 512);
    different += rounded[i].log_likelihood != exact[i].log_likelihood ? 1 : 0;
  }
  EXPECT_GT(different, 30);
}

TEST(ScorerErrorTest, RefusesIdsThatTheModelHasNot) {
  const Backends backends(DeviceKind::kCpu);
  const auto scorer =
      scorer_of(backends, test::small_model(ModelFamily::kKda, false, kVocabulary), 1);
  EXPECT_THROW(scorer->score(std::vector<TokenRequest>{{{1}, {kVocabulary}}}, silent_reporter()),
               FormatError);
}

}  // namespace
}  // namespace deltatrain::eval
