#include "convert/initial_weights.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "base/hash.h"
#include "config/models.h"
#include "convert/parameter_table.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

// Distance in representable numbers.
int64_t ulps(float a, float b) {
  const auto ordered = [](float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits >= 0 ? static_cast<int64_t>(bits)
                     : std::numeric_limits<int32_t>::min() - static_cast<int64_t>(bits);
  };
  return std::abs(ordered(a) - ordered(b));
}

class FlaInitTest : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {};

TEST_P(FlaInitTest, EveryTensorEqualsFlasBitForBit) {
  const auto golden = nlohmann::json::parse(
      read_file(test::golden_path(std::string("init_") + GetParam().first + "_seed42.json")));
  TorchGenerator generator(42);
  std::set<std::string> seen;
  int64_t total = 0;
  draw_fla_weights(GetParam().second, generator,
                   [&](const std::string& name, std::vector<float>&& values) {
                     ASSERT_TRUE(golden["params"].contains(name)) << name;
                     const auto& want = golden["params"][name];
                     EXPECT_TRUE(seen.insert(name).second) << name;
                     total += static_cast<int64_t>(values.size());
                     const auto& first = want["first"];
                     if (name.ends_with("A_log") || name.ends_with("dt_bias")) {
                       for (size_t i = 0; i < first.size(); ++i)
                         EXPECT_LE(ulps(values[i], first[i].get<float>()), 1) << name << " " << i;
                       return;
                     }
                     Sha256 digest;
                     digest.update(values.data(), values.size() * sizeof(float));
                     EXPECT_EQ(digest.hex(), want["sha256"]) << name;
                   });
  EXPECT_EQ(seen.size(), golden["params"].size());
  EXPECT_EQ(total, golden["total"]);
  float next[4];
  generator.uniform(next, 4, 0, 1);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(static_cast<double>(next[i]), golden["next_rand_after_construction"][i]);
}

INSTANTIATE_TEST_SUITE_P(Models, FlaInitTest,
                         ::testing::Values(std::pair("gdn300", test::gdn_300m()),
                                           std::pair("kda300", test::kda_300m())),
                         [](const auto& tested) { return tested.param.first; });

ModelConfig small_hybrid() {
  ModelConfig config = test::kda_300m();
  config.vocab_size = 512;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 2;
  config.attn = MlaConfig{.layers = {1},
                          .num_heads = 4,
                          .q_lora_rank = 24,
                          .kv_lora_rank = 16,
                          .qk_nope_head_dim = 8,
                          .qk_rope_head_dim = 8,
                          .v_head_dim = 16};
  return config;
}

TEST(InitialWeightsTest, EveryParameterIsDrawnOnceInEitherManner) {
  for (const InitLike like : {InitLike::kFla, InitLike::kMegatron}) {
    for (const bool tied : {true, false}) {
      ModelConfig config = small_hybrid();
      config.tie_word_embeddings = tied;
      std::set<std::string> seen;
      TorchGenerator generator(1);
      const auto draw = like == InitLike::kFla ? draw_fla_weights : draw_megatron_weights;
      draw(config, generator, [&](const std::string& name, std::vector<float>&& values) {
        EXPECT_TRUE(seen.insert(name).second) << name;
        for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
      });
      for (const formats::TensorSpec& spec : model_parameters(config))
        EXPECT_TRUE(seen.contains(spec.name)) << spec.name;
      EXPECT_EQ(seen.size(), model_parameters(config).size());
    }
  }
}

TEST(InitialWeightsTest, DistributionsAreThoseAnnounced) {
  ModelConfig config = test::kda_300m();
  config.vocab_size = 512;
  config.num_hidden_layers = 4;
  TorchGenerator generator(1);
  draw_megatron_weights(
      config, generator, [](const std::string& name, std::vector<float>&& values) {
        double sum = 0;
        double squares = 0;
        double largest = 0;
        for (const float value : values) {
          sum += value;
          squares += static_cast<double>(value) * value;
          largest = std::max(largest, std::abs(static_cast<double>(value)));
        }
        const auto n = static_cast<double>(values.size());
        const double std = std::sqrt(squares / n - sum * sum / (n * n));
        if (name.find("layers.3.") == std::string::npos) return;
        if (name.ends_with("mlp.up_proj.weight")) {
          EXPECT_NEAR(std, 0.02, 0.02 * 0.01);
        }
        if (name.ends_with("q_conv1d.weight")) {
          EXPECT_LE(largest, 0.5);
          EXPECT_NEAR(std, 0.5 / std::sqrt(3.0), 0.01);
        }
        if (name.ends_with("f_proj.1.weight") || name.ends_with("g_proj.1.bias")) {
          EXPECT_LE(largest, 0.125);
          EXPECT_GT(largest, 0.12);
        }
        if (name.ends_with("A_log")) {
          for (const float value : values)
            EXPECT_TRUE(value >= 0 && value <= std::log(16.0F)) << value;
        }
        if (name.ends_with("dt_bias")) {
          for (const float value : values) {
            const double step = std::log1p(std::exp(static_cast<double>(value)));
            EXPECT_TRUE(step > 0.99e-3 && step < 0.101) << step;
          }
        }
      });
}

}  // namespace
}  // namespace deltatrain::convert
