#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "decode/decoder.h"
#include "decode/generate.h"
#include "decode/sampler.h"
#include "model/initialization.h"

namespace deltatrain::decode {
namespace {

ModelConfig tiny(ModelFamily family, bool hybrid) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 97;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 3;
  config.num_heads = 2;
  config.num_v_heads = 4;
  config.head_dim = 16;
  config.expand_v = family == ModelFamily::kKda ? 2 : 1;
  if (hybrid) {
    config.attn = MlaConfig{.layers = {1},
                            .num_heads = 2,
                            .q_lora_rank = 24,
                            .kv_lora_rank = 16,
                            .qk_nope_head_dim = 8,
                            .qk_rope_head_dim = 8,
                            .v_head_dim = 16};
  }
  return config;
}

struct Backends {
  std::unique_ptr<backend::Backend> cpu = backend::make_backend(DeviceKind::kCpu);
  std::unique_ptr<backend::Backend> plan = [] {
    backend::BackendOptions options;
    options.planned = DeviceKind::kCpu;
    return backend::make_backend(DeviceKind::kPlan, options);
  }();
  Context context{&cpu->device(), &cpu->table(), nullptr, DType::kF32};
  Context planning{&plan->device(), &plan->table(), nullptr, DType::kF32};
};

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
  const ModelConfig config = tiny(family, hybrid);
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
      EXPECT_LE(relative_difference(pieces, whole), 1e-5)
          << "length " << length << " in pieces of " << piece;
      EXPECT_EQ(decoder.state().length(0), length);
    }
  }
}

// Sequences in slots do not see each other.
TEST_P(DecoderTest, SlotsAreIndependent) {
  const auto& [family, hybrid] = GetParam();
  Backends backends;
  const ModelConfig config = tiny(family, hybrid);
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
    EXPECT_LE(relative_difference(part, alone), 1e-5) << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderTest,
                         testing::Values(std::tuple{ModelFamily::kGatedDeltaNet, false},
                                         std::tuple{ModelFamily::kKda, false},
                                         std::tuple{ModelFamily::kGatedDeltaNet, true}));

TEST(DecoderStateTest, SizeOfDeltaRuleStatesDoesNotDependOnLength) {
  Backends backends;
  const Decoder short_one(backends.context, backends.planning, tiny(ModelFamily::kKda, false), 1,
                          16, 8);
  const Decoder long_one(backends.context, backends.planning, tiny(ModelFamily::kKda, false), 1,
                         1 << 20, 8);
  EXPECT_EQ(const_cast<Decoder&>(short_one).state().num_bytes(),
            const_cast<Decoder&>(long_one).state().num_bytes());
}

TEST(DecoderStateTest, RefusesToOutgrowAnAttentionCache) {
  Backends backends;
  Decoder decoder(backends.context, backends.planning, tiny(ModelFamily::kGatedDeltaNet, true), 1,
                  8, 8);
  decoder.feed(std::vector<std::vector<int32_t>>{prompt(8)});
  EXPECT_THROW(decoder.feed(std::vector<std::vector<int32_t>>{{1}}), ConfigError);
}

TEST(GenerateTest, GreedyIsRepeatableAndStopsAtTheEnd) {
  Backends backends;
  Decoder decoder(backends.context, backends.planning, tiny(ModelFamily::kGatedDeltaNet, false), 1,
                  64, 64);
  initialize(decoder.context(), decoder.parameters(), 0.1, 5);
  const std::vector<int32_t> start = prompt(5);
  const Generation greedy{.max_new_tokens = 12, .sampling = {.temperature = 0}, .stop_id = {}};
  const auto first = generate(decoder, start, greedy);
  EXPECT_EQ(first.size(), 12U);
  EXPECT_EQ(generate(decoder, start, greedy), first);
  Generation stopping = greedy;
  stopping.stop_id = first[3];
  const auto stopped = generate(decoder, start, stopping);
  const auto end = std::find(first.begin(), first.end(), first[3]);
  EXPECT_EQ(stopped, std::vector<int32_t>(first.begin(), end));
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
