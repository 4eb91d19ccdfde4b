// The weights that a run starts from when nothing is loaded: every tensor in its own distribution,
// none drawn over by a general pass, no output scaled by depth.

#include "model/initialization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "model/training_step.h"
#include "small_model.h"

namespace deltatrain {
namespace {

ModelConfig hybrid(ModelFamily family) {
  return {.family = family,
          .vocab_size = 2048,
          .hidden_size = 256,
          .intermediate_size = 512,
          .num_hidden_layers = 3,
          .num_heads = 4,
          .num_v_heads = 8,
          .head_dim = 32,
          .expand_v = 2,
          .attn = MlaConfig{.layers = {2},
                            .num_heads = 4,
                            .q_lora_rank = 96,
                            .kv_lora_rank = 64,
                            .qk_nope_head_dim = 32,
                            .qk_rope_head_dim = 32,
                            .v_head_dim = 64}};
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  for (const char* ending : endings) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

class InitializationTest : public testing::TestWithParam<ModelFamily> {};

TEST_P(InitializationTest, EveryTensorHasItsOwnDistribution) {
  const ModelConfig config = hybrid(GetParam());
  test::SmallModel model(DeviceKind::kCpu, config, {.num_rows = 64, .num_sequences = 1},
                         TrainingStep::Purpose::kTrace);
  auto& store = model.step().parameters();
  initialize(model.context(), store, config.initializer_range, 42);
  for (const auto& info : store.infos()) {
    const std::vector<double> values = to_host(model.context(), store.master(info));
    const auto n = static_cast<double>(values.size());
    if (ends_with_any(info.name, {"norm.weight", "q_proj.1.weight", "kv_proj.1.weight"})) {
      for (const double value : values) ASSERT_EQ(value, 1) << info.name;
    } else if (info.name.ends_with("A_log")) {
      const double low = config.family == ModelFamily::kKda ? 1 : 0;
      for (const double value : values) {
        ASSERT_GE(std::exp(value), low * (1 - 1e-6)) << info.name;
        ASSERT_LE(std::exp(value), 16 * (1 + 1e-6)) << info.name;
      }
    } else if (info.name.ends_with("dt_bias")) {
      for (const double value : values) {
        const double step = std::log1p(std::exp(value));
        ASSERT_GE(step, 1e-3 * 0.999) << info.name;
        ASSERT_LE(step, 1e-1 * 1.001) << info.name;
      }
    } else if (info.name.ends_with("bias")) {
      for (const double value : values) ASSERT_EQ(value, 0) << info.name;
    } else {
      double sum = 0, squares = 0;
      for (const double value : values) {
        sum += value;
        squares += value * value;
      }
      // Five standard errors of the estimates.
      EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n)) << info.name;
      EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n)) << info.name;
    }
  }
}

// With a tied embedding of N(0, s^2) and normed hidden states the first loss is ln N + D s^2 / 2.
TEST_P(InitializationTest, TheFirstLossIsTheExpectedOne) {
  const ModelConfig config = hybrid(GetParam());
  constexpr int64_t kRows = 4096;
  test::SmallModel model(DeviceKind::kCpu, config, {.num_rows = kRows, .num_sequences = 8},
                         TrainingStep::Purpose::kTrace);
  initialize(model.context(), model.step().parameters(), config.initializer_range, 42);
  test::SmallBatch batch;
  batch.num_sequences = 8;
  uint32_t state = 1;
  for (int64_t i = 0; i < kRows; ++i) {
    for (auto* list : {&batch.ids, &batch.labels}) {
      state = state * 1664525 + 1013904223;
      list->push_back(static_cast<int32_t>((state >> 8) % 2048));
    }
  }
  for (int64_t s = 0; s <= 8; ++s) batch.offsets.push_back(static_cast<int32_t>(s * kRows / 8));
  const double loss = model.trace(batch).loss_sum / static_cast<double>(kRows);
  // A label's logit has the standard deviation s sqrt(D) = 0.32; four standard errors of its mean.
  EXPECT_NEAR(loss, std::log(2048.0) + 256 * 0.02 * 0.02 / 2, 4 * 0.32 / 64);
}

INSTANTIATE_TEST_SUITE_P(Families, InitializationTest,
                         testing::Values(ModelFamily::kGatedDeltaNet, ModelFamily::kKda),
                         [](const auto& tested) {
                           return tested.param == ModelFamily::kKda ? std::string("kda")
                                                                    : std::string("gdn");
                         });

}  // namespace
}  // namespace deltatrain
