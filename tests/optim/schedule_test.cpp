#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "optim/optimizer.h"

namespace deltatrain::optim {
namespace {

OptimizerConfig optimizer() {
  OptimizerConfig config;
  config.lr = 2e-4;
  config.min_lr = 2e-5;
  return config;
}

// Closed form: the first step has rate 0, the peak
// comes after the warm-up, half way down lies the mean.
TEST(ScheduleTest, WarmUpThenCosine) {
  const ScheduleConfig schedule{
      .lr_warmup_iters = 200, .lr_decay_iters = 1000, .lr_decay_style = DecayStyle::kCosine};
  EXPECT_EQ(learning_rate(optimizer(), schedule, 1000, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), schedule, 1000, 1), 1e-6);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), schedule, 1000, 200), 2e-4);
  EXPECT_NEAR(learning_rate(optimizer(), schedule, 1000, 600), 1.1e-4, 1e-18);
  EXPECT_NEAR(learning_rate(optimizer(), schedule, 1000, 1000), 2e-5, 1e-18);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), schedule, 1000, 5000), 2e-5);
}

TEST(ScheduleTest, LinearAndConstant) {
  ScheduleConfig schedule{
      .lr_warmup_iters = 0, .lr_decay_iters = 0, .lr_decay_style = DecayStyle::kLinear};
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), schedule, 100, 0), 2e-4);
  EXPECT_NEAR(learning_rate(optimizer(), schedule, 100, 50), 1.1e-4, 1e-18);
  schedule.lr_decay_style = DecayStyle::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), schedule, 100, 99), 2e-4);
}

TEST(DecayGroupsTest, AsEachTrainerHasThem) {
  const auto decays = [](const char* name, const Shape& shape, DecayGroups groups,
                         ModelFamily family) {
    return has_weight_decay(name, shape, groups, family);
  };
  const ModelFamily gdn = ModelFamily::kGatedDeltaNet, kda = ModelFamily::kKda;
  const DecayGroups megatron = DecayGroups::kMegatron, exact = DecayGroups::kMegatronExact,
                    hf = DecayGroups::kHf;
  for (const DecayGroups groups : {megatron, exact, hf}) {
    EXPECT_TRUE(decays("model.layers.0.attn.q_proj.weight", {8, 4}, groups, gdn));
    EXPECT_TRUE(decays("model.layers.0.attn.q_conv1d.weight", {8, 1, 4}, groups, gdn));
    EXPECT_TRUE(decays("model.embeddings.weight", {8, 4}, groups, gdn));
    EXPECT_FALSE(decays("model.layers.0.attn.dt_bias", {8}, groups, kda));
    EXPECT_FALSE(decays("model.layers.0.attn.g_proj.1.bias", {8}, groups, kda));
    EXPECT_FALSE(decays("model.layers.0.attn_norm.weight", {8}, groups, gdn));
    EXPECT_FALSE(decays("model.layers.0.attn.o_norm.weight", {8}, groups, gdn));
    EXPECT_FALSE(decays("model.norm.weight", {8}, groups, gdn));
  }
  EXPECT_FALSE(decays("model.layers.0.attn.A_log", {8}, megatron, kda));
  EXPECT_FALSE(decays("model.layers.0.attn.A_log", {8}, exact, gdn));
  EXPECT_TRUE(decays("model.layers.0.attn.A_log", {8}, exact, kda));
  EXPECT_TRUE(decays("model.layers.0.attn.A_log", {8}, hf, gdn));
  EXPECT_TRUE(decays("model.layers.0.attn.kv_proj.1.weight", {8}, hf, gdn));
  EXPECT_FALSE(decays("model.layers.0.attn.kv_proj.1.weight", {8}, megatron, gdn));
}

}  // namespace
}  // namespace deltatrain::optim
