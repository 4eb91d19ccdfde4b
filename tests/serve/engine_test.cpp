#include "serve/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "decode/decoder.h"
#include "model/initialization.h"
#include "support/devices.h"
#include "support/small_models.h"

namespace deltatrain::serve {
namespace {

using test::Backends;

constexpr int32_t kVocabulary = 131;

// What a request was answered.
struct Answer : Listener {
  struct SampleAnswer {
    std::vector<GeneratedToken> tokens;
    std::optional<FinishReason> reason;
  };
  explicit Answer(int64_t num_samples = 1) : samples(static_cast<size_t>(num_samples)) {}

  void on_prompt(std::vector<TokenLogprobs> logprobs) override {
    EXPECT_FALSE(is_over());
    prompt = std::move(logprobs);
  }
  bool on_token(int64_t sample, const GeneratedToken& token) override {
    SampleAnswer& answer = samples[static_cast<size_t>(sample)];
    EXPECT_FALSE(answer.reason) << "a token after the end";
    answer.tokens.push_back(token);
    return static_cast<int64_t>(answer.tokens.size()) != stop_after;
  }
  void on_finish(int64_t sample, FinishReason reason) override {
    EXPECT_FALSE(samples[static_cast<size_t>(sample)].reason) << "a second end";
    samples[static_cast<size_t>(sample)].reason = reason;
  }
  void on_error(const std::string& message) override {
    EXPECT_TRUE(error.empty());
    error = message;
  }
  bool is_cancelled() const override { return cancelled; }

  bool is_over() const {
    return !error.empty() || std::ranges::all_of(samples, [](const auto& sample) {
      return sample.reason.has_value();
    });
  }
  std::vector<int32_t> ids(size_t sample = 0) const {
    std::vector<int32_t> result;
    for (const GeneratedToken& token : samples[sample].tokens) result.push_back(token.id);
    return result;
  }

  std::vector<TokenLogprobs> prompt;
  std::vector<SampleAnswer> samples;
  std::string error;
  int64_t stop_after = -1;
  bool cancelled = false;
};

bool same_bits(const TokenLogprobs& a, const TokenLogprobs& b) {
  return std::memcmp(&a.own, &b.own, sizeof a.own) == 0 &&
         std::ranges::equal(a.top, b.top, [](const TopToken& x, const TopToken& y) {
           return x.id == y.id && std::memcmp(&x.logprob, &y.logprob, sizeof x.logprob) == 0;
         });
}

void expect_same(const Answer& got, const Answer& want, const std::string& what) {
  EXPECT_EQ(got.error, want.error) << what;
  EXPECT_TRUE(std::ranges::equal(got.prompt, want.prompt, same_bits)) << what << ": prompt";
  ASSERT_EQ(got.samples.size(), want.samples.size()) << what;
  for (size_t s = 0; s < want.samples.size(); ++s) {
    EXPECT_EQ(got.ids(s), want.ids(s)) << what << ", sample " << s;
    EXPECT_EQ(got.samples[s].reason, want.samples[s].reason) << what << ", sample " << s;
    EXPECT_TRUE(std::ranges::equal(
        got.samples[s].tokens, want.samples[s].tokens,
        [](const auto& x, const auto& y) { return same_bits(x.logprobs, y.logprobs); }))
        << what << ", sample " << s;
  }
}

std::vector<int32_t> random_ids(std::mt19937& random, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % kVocabulary));
  return ids;
}

// Of all kinds and lengths; several begin alike, some are equal but for what they ask.
std::vector<Request> requests() {
  std::mt19937 random(7);
  std::vector<Request> result;
  const std::vector<int32_t> shared = random_ids(random, 300);
  for (const int64_t length : {1, 2, 5, 63, 64, 65, 127, 128, 129, 200, 256, 257, 300, 600}) {
    Request request{.prompt = random_ids(random, length)};
    const auto common = std::min<int64_t>(length, length % 3 == 0 ? 128 : 70);
    if (length % 2 == 0) std::copy_n(shared.begin(), common, request.prompt.begin());
    request.max_new_tokens = length % 7;
    request.sampling = {.temperature = length % 4 == 0 ? 0.0 : 0.9,
                        .top_k = length % 5,
                        .top_p = length % 3 == 0 ? 0.8 : 1.0,
                        .seed = static_cast<uint64_t>(length)};
    request.num_samples = 1 + length % 3;
    request.num_top = length % 4 - 1;
    request.scores_prompt = request.num_top >= 0 && length % 5 != 0;
    request.stop_ids = {4, 9};
    result.push_back(request);
    if (request.num_top >= 1) {
      request.num_top = 0;
      request.max_new_tokens = 9;
      result.push_back(request);
    }
  }
  for (int64_t i = 0; i < 4; ++i) {  // the choices of a question
    Request request{.prompt = shared, .max_new_tokens = 1, .sampling = {.temperature = 0}};
    request.prompt.push_back(static_cast<int32_t>(i));
    request.num_top = 1;
    request.scores_prompt = true;
    result.push_back(request);
  }
  return result;
}

std::unique_ptr<Engine> engine_of(const Backends& backends, const ModelConfig& config,
                                  EngineOptions options) {
  options.max_length = 700;
  auto engine = std::make_unique<Engine>(backends.context, backends.planning, config, options);
  initialize(engine->context(), engine->parameters(), 0.1, 5);
  return engine;
}

constexpr int64_t kCacheBytes = int64_t{1} << 22;

void run_all(Engine& engine) {
  while (engine.step()) {
  }
}

class EngineTest : public testing::TestWithParam<std::tuple<ModelFamily, bool>> {
 protected:
  ModelConfig config() const {
    return test::small_model(std::get<0>(GetParam()), std::get<1>(GetParam()), kVocabulary);
  }
  const Backends backends_{DeviceKind::kCpu};
};

void expect_answers_independent(const Backends& backends, const ModelConfig& config) {
  const std::vector<Request> all = requests();
  std::vector<std::shared_ptr<Answer>> want;
  const auto one = engine_of(backends, config, {.num_streams = 3, .num_prompts = 1});
  for (const Request& request : all) {
    want.push_back(std::make_shared<Answer>(request.num_samples));
    ASSERT_TRUE(one->submit(request, want.back()));
    run_all(*one);
    ASSERT_TRUE(want.back()->is_over());
    EXPECT_EQ(want.back()->error, "");
    EXPECT_EQ(want.back()->prompt.size(), request.scores_prompt ? request.prompt.size() - 1 : 0);
  }
  EXPECT_EQ(one->stats().reused_prompt_tokens, 0);

  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(11);
  const std::vector<EngineOptions> settings = {
      {.num_streams = 64, .num_prompts = 64},
      {.num_streams = 5, .num_prompts = 3, .prefix_cache_bytes = kCacheBytes},
      {.num_streams = 16, .num_prompts = 16, .prefix_cache_bytes = kCacheBytes}};
  for (const EngineOptions& options : settings) {
    const auto engine = engine_of(backends, config, options);
    for (int round = 0; round < 2; ++round) {  // the second time much is kept
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Answer>> got(all.size());
      for (const size_t i : order) {
        got[i] = std::make_shared<Answer>(all[i].num_samples);
        ASSERT_TRUE(engine->submit(all[i], got[i]));
        if (i % 3 == 0) engine->step();  // they come while others are under way
      }
      run_all(*engine);
      for (size_t i = 0; i < all.size(); ++i)
        expect_same(*got[i], *want[i],
                    "request " + std::to_string(i) + " with " +
                        std::to_string(options.num_streams) + " streams, round " +
                        std::to_string(round));
    }
    EXPECT_EQ(engine->stats().reused_prompt_tokens > 0, options.prefix_cache_bytes > 0);
    EXPECT_EQ(engine->stats().streams, 0);
    EXPECT_EQ(engine->stats().prompts, 0);
    EXPECT_EQ(engine->stats().waiting, 0);
  }
}

TEST_P(EngineTest, AnswersDoNotDependOnWhatElseIsAsked) {
  expect_answers_independent(backends_, config());
}

TEST_P(EngineTest, AnswersDoNotDependOnWhatElseIsAskedOnAGpu) {
  if (!test::has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no such device";
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(dtype_name(dtype));
    expect_answers_independent(Backends(DeviceKind::kCuda, dtype, /*gemm_uniform_rows=*/true),
                               config());
  }
}

// Token by token in f64, through the plain loops that define the operators.
TEST_P(EngineTest, AnswersAreThoseOfTheReferenceRecurrence) {
  const Backends reference(DeviceKind::kReference);
  const auto engine = engine_of(backends_, config(), {});
  std::mt19937 random(3);
  for (const int64_t length : {1, 70, 300}) {
    Request request{.prompt = random_ids(random, length),
                    .max_new_tokens = 6,
                    .sampling = {.temperature = 0},
                    .num_top = 3,
                    .scores_prompt = true};
    const auto answer = std::make_shared<Answer>();
    engine->submit(request, answer);
    run_all(*engine);
    ASSERT_EQ(answer->ids().size(), 6U);
    EXPECT_EQ(answer->samples[0].reason, FinishReason::kLength);

    decode::Decoder decoder(reference.context, reference.planning, config(), 1, 700, 1);
    initialize(decoder.context(), decoder.parameters(), 0.1, 5);
    std::vector<TokenLogprobs> all = answer->prompt;
    std::vector<int32_t> ids = request.prompt;
    for (const GeneratedToken& token : answer->samples[0].tokens) {
      all.push_back(token.logprobs);
      ids.push_back(token.id);
    }
    ASSERT_EQ(all.size(), ids.size() - 1);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const std::vector<float> logits = decoder.feed(std::vector<std::vector<int32_t>>{{ids[i]}});
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      const auto logprob = [&](int32_t id) {
        return static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum);
      };
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_NEAR(all[i].own, logprob(ids[i + 1]), 1e-5 * std::fabs(logprob(ids[i + 1])));
      ASSERT_EQ(all[i].top.size(), 3U);
      EXPECT_EQ(all[i].top[0].id, best);
      for (const TopToken& top : all[i].top)
        EXPECT_NEAR(top.logprob, logprob(top.id), 1e-5 * std::fabs(logprob(top.id)));
      if (i + 1 >= request.prompt.size()) {
        EXPECT_EQ(ids[i + 1], best);  // greedy
      }
    }
  }
}

// A long prompt read whole, in pieces of several sizes, and what is said after it.
TEST_P(EngineTest, PiecesOfALongPromptChangeRoundingsOnly) {
  constexpr int64_t kLength = 4000, kTokens = 100;
  std::mt19937 random(23);
  const std::vector<int32_t> prompt = random_ids(random, kLength);
  decode::Decoder whole(backends_.context, backends_.planning, config(), 1, kLength + kTokens,
                        kLength);
  initialize(whole.context(), whole.parameters(), 0.1, 5);
  const std::vector<float> logits = whole.feed(std::vector<std::vector<int32_t>>{prompt});
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const auto best = std::ranges::max_element(logits) - logits.begin();
  std::vector<int32_t> want = {static_cast<int32_t>(best)};
  for (const auto& next : whole.go_on_greedily(want, kTokens - 1)) want.push_back(next[0]);

  for (const int64_t piece : {64, 512}) {
    Engine engine(backends_.context, backends_.planning, config(),
                  {.num_streams = 1,
                   .num_prompts = 1,
                   .max_length = kLength + kTokens,
                   .piece_tokens = piece});
    initialize(engine.context(), engine.parameters(), 0.1, 5);
    const auto answer = std::make_shared<Answer>();
    engine.submit(
        {.prompt = prompt, .max_new_tokens = kTokens, .sampling = {.temperature = 0}, .num_top = 0},
        answer);
    run_all(engine);
    ASSERT_EQ(answer->error, "");
    EXPECT_EQ(answer->ids(), want) << piece;
    EXPECT_NEAR(answer->samples[0].tokens[0].logprobs.own,
                static_cast<double>(logits[static_cast<size_t>(best)]) - std::log(sum), 1e-4)
        << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EngineTest,
                         testing::Values(std::tuple{ModelFamily::kGatedDeltaNet, false},
                                         std::tuple{ModelFamily::kKda, false},
                                         std::tuple{ModelFamily::kGatedDeltaNet, true}));

class SmallEngineTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine(const EngineOptions& options) const {
    return engine_of(backends_, test::small_model(ModelFamily::kGatedDeltaNet, false, kVocabulary),
                     options);
  }
  const Backends backends_{DeviceKind::kCpu};
};

TEST_F(SmallEngineTest, SamplesAreThoseOfRequestsWithTheirSeeds) {
  const auto some = engine({});
  Request request{.prompt = {5, 6, 7}, .max_new_tokens = 20, .num_samples = 3};
  request.sampling.seed = 40;
  const auto together = std::make_shared<Answer>(3);
  some->submit(request, together);
  run_all(*some);
  request.num_samples = 1;
  for (size_t i = 0; i < 3; ++i) {
    request.sampling.seed = 40 + i;
    const auto alone = std::make_shared<Answer>();
    some->submit(request, alone);
    run_all(*some);
    EXPECT_EQ(together->ids(i), alone->ids());
  }
  EXPECT_NE(together->ids(0), together->ids(1));
}

TEST_F(SmallEngineTest, StopsAtStopIdsAndWhereTheListenerSays) {
  const auto some = engine({});
  Request request{.prompt = {5, 6, 7}, .max_new_tokens = 20};
  const auto whole = std::make_shared<Answer>();
  some->submit(request, whole);
  run_all(*some);
  const std::vector<int32_t> ids = whole->ids();
  ASSERT_EQ(ids.size(), 20U);
  EXPECT_EQ(whole->samples[0].reason, FinishReason::kLength);

  request.stop_ids = {ids[4]};
  const auto stopped = std::make_shared<Answer>();
  some->submit(request, stopped);
  run_all(*some);
  const auto end = std::find(ids.begin(), ids.end(), ids[4]) + 1;
  EXPECT_EQ(stopped->ids(), std::vector<int32_t>(ids.begin(), end));
  EXPECT_TRUE(stopped->samples[0].tokens.back().is_stop);
  EXPECT_EQ(stopped->samples[0].reason, FinishReason::kStop);

  request.stop_ids = {ids[0]};  // the first token ends it: there is nothing to decode
  const auto at_once = std::make_shared<Answer>();
  some->submit(request, at_once);
  run_all(*some);
  EXPECT_EQ(at_once->ids(), std::vector<int32_t>{ids[0]});

  request.stop_ids = {};
  const auto cut = std::make_shared<Answer>();
  cut->stop_after = 7;
  some->submit(request, cut);
  run_all(*some);
  EXPECT_EQ(cut->ids(), std::vector<int32_t>(ids.begin(), ids.begin() + 7));
  EXPECT_EQ(cut->samples[0].reason, FinishReason::kStop);
}

TEST_F(SmallEngineTest, AQuestionsChoicesShareTheirContext) {
  const auto some = engine({.prefix_cache_bytes = kCacheBytes});
  std::mt19937 random(3);
  const std::vector<int32_t> context = random_ids(random, 300);
  for (int32_t choice = 0; choice < 4; ++choice) {
    Request request{.prompt = context, .max_new_tokens = 1, .num_top = 1, .scores_prompt = true};
    request.prompt.push_back(choice);
    some->submit(request, std::make_shared<Answer>());
  }
  run_all(*some);
  // Asked at once: the others wait for the state after 256 tokens.
  EXPECT_EQ(some->stats().prompt_tokens, 301 + 3 * 45);
  EXPECT_EQ(some->stats().reused_prompt_tokens, 3 * 256);
}

TEST_F(SmallEngineTest, TheLeastRecentlyUsedPrefixGivesWay) {
  const auto measured = engine({});
  const auto some = engine({.prefix_cache_bytes = 2 * measured->bytes_per_stream()});
  const auto ask = [&](int32_t id) {
    some->submit({.prompt = std::vector<int32_t>(40, id), .max_new_tokens = 1},
                 std::make_shared<Answer>());
    run_all(*some);
    return some->stats().reused_prompt_tokens.load();
  };
  EXPECT_EQ(ask(1), 0);
  EXPECT_EQ(ask(2), 0);
  EXPECT_EQ(ask(1), 40);
  EXPECT_EQ(ask(3), 40);  // in place of 2
  EXPECT_EQ(ask(1), 80);
  EXPECT_EQ(ask(2), 80);
  EXPECT_EQ(some->stats().kept_prefixes, 2);
}

TEST_F(SmallEngineTest, CancelledRequestsLeaveAndDisturbNobody) {
  Request request{.prompt = {1, 2, 3}, .max_new_tokens = 30};
  const auto alone_engine = engine({});
  const auto alone = std::make_shared<Answer>();
  alone_engine->submit(request, alone);
  run_all(*alone_engine);

  const auto some = engine({.num_streams = 4, .num_prompts = 2});
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 9; ++i) {
    answers.push_back(std::make_shared<Answer>());
    request.sampling.seed = static_cast<uint64_t>(i % 3 == 0 ? 0 : i);
    some->submit(request, answers.back());
  }
  for (int step = 0; step < 5; ++step) some->step();
  for (const size_t i : {1U, 2U, 4U, 8U}) answers[i]->cancelled = true;
  std::vector<size_t> tokens_before;
  for (const auto& answer : answers) tokens_before.push_back(answer->samples[0].tokens.size());
  run_all(*some);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i]->cancelled) {
      EXPECT_EQ(answers[i]->samples[0].tokens.size(), tokens_before[i]);
      EXPECT_FALSE(answers[i]->is_over());
    } else if (i % 3 == 0) {
      EXPECT_EQ(answers[i]->ids(), alone->ids()) << i;
    }
  }
  EXPECT_EQ(some->stats().streams, 0);
  EXPECT_EQ(some->stats().waiting, 0);
}

TEST_F(SmallEngineTest, WeightsThatAreNotNumbersAreAnErrorOfTheRequest) {
  const auto broken = engine({});
  const Tensor weights = broken->parameters().flat_master();
  std::fill_n(weights.data<float>(), weights.num_elements(),
              std::numeric_limits<float>::quiet_NaN());
  broken->parameters().refresh_compute(broken->context());
  const auto answer = std::make_shared<Answer>(2);
  broken->submit({.prompt = {1, 2}, .num_samples = 2}, answer);
  const auto scored = std::make_shared<Answer>();
  broken->submit({.prompt = {1, 2}, .max_new_tokens = 0, .num_top = 0, .scores_prompt = true},
                 scored);
  run_all(*broken);
  EXPECT_THAT(answer->error, testing::HasSubstr("NaN"));
  EXPECT_TRUE(answer->samples[0].tokens.empty());
  EXPECT_THAT(scored->error, testing::HasSubstr("NaN"));
}

TEST_F(SmallEngineTest, RefusesWhatCanNeverRun) {
  const auto some = engine({.num_streams = 2, .max_queue = 2});
  const auto refused = [&](const Request& request) {
    try {
      some->submit(request, std::make_shared<Answer>());
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused({}), "prompt: expected at least one token, got 0");
  EXPECT_EQ(refused({.prompt = {kVocabulary}}),
            "prompt: expected token ids from 0 to 130, got 131");
  EXPECT_EQ(refused({.prompt = {-1}}), "prompt: expected token ids from 0 to 130, got -1");
  EXPECT_EQ(refused({.prompt = {1}, .max_new_tokens = 700}),
            "prompt and max_tokens: expected at most 700 tokens together, got 701");
  EXPECT_EQ(refused({.prompt = {1}, .num_samples = 3}), "n: expected a number from 1 to 2, got 3");
  EXPECT_EQ(refused({.prompt = {1}, .num_top = 21}),
            "logprobs: expected a number up to 20, got 21");
  const auto answer = std::make_shared<Answer>();
  EXPECT_TRUE(some->submit({.prompt = {1}, .max_new_tokens = 699}, answer));
  EXPECT_TRUE(some->submit({.prompt = {1}}, answer));
  EXPECT_FALSE(some->submit({.prompt = {1}}, answer)) << "the queue is full";
}

TEST(PieceEndsTest, DependOnTheLengthAlone) {
  const EngineOptions options;
  const auto ends = [&](int64_t length) { return Engine::piece_ends(length, options); };
  EXPECT_EQ(ends(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(ends(64), (std::vector<int64_t>{64}));
  EXPECT_EQ(ends(65), (std::vector<int64_t>{64, 65}));
  EXPECT_EQ(ends(900), (std::vector<int64_t>{64, 128, 256, 512, 768, 900}));
}

TEST(TokenLogprobsTest, AreDifferencesFromTheLogSumExpRoundedOnce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const TokenLogprobs logprobs = token_logprobs(
      {.id = 7, .logit = 1.5, .lse = 4.25, .top = {{3, 3}, {5, 3}, {7, 1.5}, {9, -kInfinity}}});
  EXPECT_EQ(logprobs.own, -2.75F);
  ASSERT_EQ(logprobs.top.size(), 3U) << "what is impossible has no number";
  EXPECT_EQ(logprobs.top[0].id, 3);
  EXPECT_EQ(logprobs.top[1].id, 5);
  EXPECT_EQ(logprobs.top[1].logprob, -1.25F);
  EXPECT_EQ(logprobs.top[2].logprob, logprobs.own);
  EXPECT_THROW(token_logprobs({.id = 7, .logit = -kInfinity, .lse = 4.25, .top = {}}),
               NumericError);
}

}  // namespace
}  // namespace deltatrain::serve
