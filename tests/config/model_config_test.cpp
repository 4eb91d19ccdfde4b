#include "config/model_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/models.h"

namespace deltatrain {
namespace {

using test::gdn_1b;
using test::gdn_300m;
using test::kda_1b;
using test::kda_300m;
using test::mla_1b;
using test::mla_300m;
using test::with_attention;

std::string problem_of(const std::function<void(ModelConfig&)>& change,
                       ModelConfig config = gdn_300m()) {
  change(config);
  try {
    validate(config, "m.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfigTest, MlaBlocksAreThoseListed) {
  const ModelConfig hybrid = with_attention(gdn_300m(), mla_300m());
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < hybrid.num_hidden_layers; ++i) {
    if (hybrid.is_mla_layer(i)) blocks.push_back(i);
  }
  EXPECT_EQ(blocks, (std::vector<int64_t>{0, 4, 8}));
  EXPECT_FALSE(gdn_300m().is_mla_layer(0));
}

// The counts published for these models, from the shapes of their checkpoints.
TEST(ModelConfigTest, ParameterCountsOfThePublishedModels) {
  EXPECT_EQ(count_parameters(gdn_300m()), 307'767'232);
  EXPECT_EQ(count_parameters(kda_300m()), 303'549'280);
  EXPECT_EQ(count_parameters(with_attention(gdn_300m(), mla_300m())), 309'280'624);
  EXPECT_EQ(count_parameters(with_attention(kda_300m(), mla_300m())), 306'117'160);
  EXPECT_EQ(count_parameters(gdn_1b()), 1'203'441'152);
  EXPECT_EQ(count_parameters(kda_1b()), 1'175'153'920);
  EXPECT_EQ(count_parameters(with_attention(kda_1b(), mla_1b())), 1'190'062'784);
}

TEST(ModelConfigTest, VariantsChangeTheCountByTheirTensors) {
  const int64_t whole = count_parameters(gdn_300m());
  ModelConfig c = gdn_300m();
  c.tie_word_embeddings = false;
  EXPECT_EQ(count_parameters(c) - whole, 128256 * 1024);
  c = gdn_300m();
  c.use_gate = false;
  EXPECT_EQ(whole - count_parameters(c), 12 * 512 * 1024);
  c = with_attention(gdn_300m(), mla_300m());
  const int64_t ranked = count_parameters(c);
  c.attn->q_lora_rank.reset();
  EXPECT_EQ(ranked - count_parameters(c), 3 * (688'128 + 672 + 688'128 - 1024 * 1024));
}

// GFLOP per token of the kernel budget that the throughput goals are stated in.
TEST(ModelConfigTest, FlopsPerTokenWithinHalfAPercentOfTheBudget) {
  const auto expect = [](const ModelConfig& config, double gflop) {
    EXPECT_NEAR(count_flops_per_token(config, 2048) / 1e9, gflop, 0.005 * gflop);
  };
  expect(gdn_300m(), 1.867);
  expect(kda_300m(), 1.835);
  expect(with_attention(gdn_300m(), mla_300m()), 1.915);
  expect(with_attention(kda_300m(), mla_300m()), 1.891);
  expect(gdn_1b(), 7.275);
  expect(kda_1b(), 7.087);
}

// Worked out by hand from docs/maths/flops.md, once without and once with a q rank.
TEST(ModelConfigTest, FlopsOfASmallHybridTermByTerm) {
  ModelConfig c = with_attention(gdn_300m(), mla_300m());
  c.vocab_size = 1000;
  c.hidden_size = 32;
  c.intermediate_size = 100;
  c.num_hidden_layers = 2;
  c.num_heads = 1;
  c.num_v_heads = 2;
  c.head_dim = 8;
  c.attn = MlaConfig{.layers = {1},
                     .num_heads = 3,
                     .q_lora_rank = 12,
                     .kv_lora_rank = 10,
                     .qk_nope_head_dim = 4,
                     .qk_rope_head_dim = 2,
                     .v_head_dim = 5};
  const double head = 6.0 * 1000 * 32, mlp = 18.0 * 100 * 32;
  const double delta = 6.0 * 32 * (8 + 8 + 16 + 2 + 2 + 16 + 16) + 6 * 4 * 32 +
                       2 * (4 * 64 * 16 + 6 * 64 + 10 * 64 * 16 + 14 * 64 + 4 * 64 * 64);
  const double rest_of_mla = 6.0 * 32 * (10 + 2) + 6 * 10 * 3 * 9 + 6 * 32 * 15 + 6 * 50 * 3 * 11;
  EXPECT_DOUBLE_EQ(count_flops_per_token(c, 100),
                   head + 2 * mlp + delta + rest_of_mla + 6 * 32 * 12 + 6 * 12 * 18);
  c.attn->q_lora_rank.reset();
  EXPECT_DOUBLE_EQ(count_flops_per_token(c, 100),
                   head + 2 * mlp + delta + rest_of_mla + 6 * 32 * 18);
}

TEST(ModelConfigTest, AttentionFlopsGrowWithTheSequence) {
  const ModelConfig hybrid = with_attention(gdn_300m(), mla_300m());
  // Three blocks, 16 heads, 64 + 64 channels, forward and two gradients of a multiply-add.
  EXPECT_DOUBLE_EQ(count_flops_per_token(hybrid, 4096) - count_flops_per_token(hybrid, 2048),
                   3.0 * 6 * 1024 * 16 * 128);
  EXPECT_EQ(count_flops_per_token(gdn_300m(), 4096), count_flops_per_token(gdn_300m(), 2048));
}

TEST(ModelConfigTest, AcceptsThePublishedModelsAndTheirVariants) {
  for (const ModelConfig& config :
       {gdn_300m(), kda_300m(), gdn_1b(), with_attention(kda_1b(), mla_1b())}) {
    EXPECT_EQ(problem_of([](ModelConfig&) {}, config), "");
  }
  const auto variant = [](ModelConfig& c) {
    c.allow_neg_eigval = true;
    c.lower_bound = -5;
    c.safe_gate = true;
    c.attn->q_lora_rank.reset();
  };
  EXPECT_EQ(problem_of(variant, with_attention(kda_300m(), mla_300m())), "");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.use_gate = false; }), "");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.norm_eps = 0.5; }), "");
}

TEST(ModelConfigTest, RefusesWhatNoModelCanHave) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.hidden_size = 0; }),
            "m.yaml: model.hidden_size: expected a whole number from 1 to 1048576, got 0");
  EXPECT_EQ(
      problem_of([](ModelConfig& c) { c.vocab_size = int64_t{1} << 40; }),
      "m.yaml: model.vocab_size: expected a whole number from 2 to 2147483647, got 1099511627776");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.num_v_heads = 6; }),
            "m.yaml: model.num_v_heads: expected a multiple of num_heads (4), got 6");
  EXPECT_EQ(
      problem_of([](ModelConfig& c) { c.expand_v = 1.001; }),
      "m.yaml: model.expand_v: expected head_dim (64) * expand_v a whole number >= 1, got 1.001");
  EXPECT_EQ(
      problem_of([](ModelConfig& c) { c.expand_v = 1e300; }),
      "m.yaml: model.expand_v: expected head_dim (64) * expand_v a whole number >= 1, got 1e+300");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.num_heads = c.num_v_heads = c.head_dim = 1 << 20; }),
            "m.yaml: model.head_dim: expected heads of at most 1048576 channels in all, got "
            "1099511627776");
  EXPECT_EQ(problem_of([&](ModelConfig& c) { c.norm_eps = nan; }),
            "m.yaml: model.norm_eps: expected a number > 0, got nan");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.eos_token_id = 128256; }),
            "m.yaml: model.eos_token_id: expected null or a token id from 0 to 128255, got 128256");
}

TEST(ModelConfigTest, RefusesVariantsOfTheOtherFamilyByName) {
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.use_short_conv = false; }),
            "m.yaml: model.use_short_conv: expected true, mixers without short convolutions are not "
            "supported, got false");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.use_gate = false; }, kda_300m()),
            "m.yaml: model.use_gate: expected true for model_type kda, whose output gate is fixed, "
            "got false");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.lower_bound = -1; }),
            "m.yaml: model.lower_bound: expected null for model_type gated_deltanet, got -1");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.safe_gate = true; }),
            "m.yaml: model.safe_gate: expected false for model_type gated_deltanet, got true");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.lower_bound = 0; }, kda_300m()),
            "m.yaml: model.lower_bound: expected null or a number < 0, got 0");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.safe_gate = true; }, kda_300m()),
            "m.yaml: model.lower_bound: expected a number from -5 to 0 because safe_gate is true, "
            "got null");
}

TEST(ModelConfigTest, RefusesAttentionThatDoesNotFit) {
  const ModelConfig hybrid = with_attention(gdn_300m(), mla_300m());
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.attn->layers = {}; }, hybrid),
            "m.yaml: model.attn.layers: expected at least one block, or attn: null, got []");
  EXPECT_EQ(problem_of(
                [](ModelConfig& c) {
                  c.attn->layers = {0, 12};
                },
                hybrid),
            "m.yaml: model.attn.layers: expected a whole number from 0 to 11, got 12");
  EXPECT_EQ(problem_of(
                [](ModelConfig& c) {
                  c.attn->layers = {4, 4};
                },
                hybrid),
            "m.yaml: model.attn.layers: expected block numbers in ascending order, each once, got "
            "4 after 4");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.attn->qk_rope_head_dim = 31; }, hybrid),
            "m.yaml: model.attn.qk_rope_head_dim: expected an even number, got 31");
  EXPECT_EQ(problem_of([](ModelConfig& c) { c.attn->q_lora_rank = 0; }, hybrid),
            "m.yaml: model.attn.q_lora_rank: expected a whole number from 1 to 1048576, got 0");
}

}  // namespace
}  // namespace deltatrain
