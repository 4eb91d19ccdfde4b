// Tiny models against values computed by an independent float64 implementation:
// tests/golden/README.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "base/files.h"
#include "config/hf_config.h"
#include "formats/safetensors.h"
#include "model/training_step.h"
#include "ops/cross_entropy.h"
#include "small_model.h"
#include "support/devices.h"
#include "support/test_files.h"
#include "verify/tolerance.h"

namespace deltatrain {
namespace {

using test::as_doubles;
using test::relative_error;

class GoldenModelTest : public testing::TestWithParam<std::tuple<std::string, DeviceKind>> {
 protected:
  void SetUp() override {
    if (!test::has_device(std::get<1>(GetParam()))) GTEST_SKIP() << "no such device";
  }
};

TEST_P(GoldenModelTest, OutputsLossAndEveryGradient) {
  const auto& [name, kind] = GetParam();
  const verify::ModelBounds bounds =
      kind == DeviceKind::kReference ? verify::kModelF64 : verify::kModelF32;

  const auto folder = test::golden_path(name);
  const ModelConfig config =
      model_config_from_hf(read_file(folder / "config.json"), (folder / "config.json").string());
  const formats::SafetensorsFile expected(folder / "expected_outputs.safetensors");
  const auto batch = test::SmallBatch::next_tokens(expected.at("input_ids"));
  test::SmallModel model(kind, config, batch.shape(), TrainingStep::Purpose::kGradients);
  const formats::SafetensorsFolder weights(folder);
  const auto& infos = model.step().parameters().infos();
  ASSERT_EQ(weights.tensors().size(), infos.size());
  model.load([&](const std::string& parameter) -> const formats::StoredTensor& {
    return *weights.at(parameter).tensor;
  });

  const auto trace = model.trace(batch);
  const double expected_loss = as_doubles(expected.at("loss")).front();
  EXPECT_NEAR(trace.loss_sum / static_cast<double>(batch.num_valid()), expected_loss,
              bounds.loss * expected_loss);
  EXPECT_LE(relative_error(trace.logits, as_doubles(expected.at("logits"))), bounds.logits);
  ASSERT_EQ(trace.streams.size(), static_cast<size_t>(config.num_hidden_layers) + 1);
  for (size_t i = 0; i < trace.streams.size(); ++i) {
    EXPECT_LE(
        relative_error(trace.streams[i], as_doubles(expected.at("hidden." + std::to_string(i)))),
        bounds.logits)
        << "hidden." << i;
  }
  size_t compared = 0;
  for (int part = 0; part < 2; ++part) {
    const auto path = folder / ("expected_gradients_" + std::to_string(part) + ".safetensors");
    if (!std::filesystem::exists(path)) continue;
    const formats::SafetensorsFile gradients(path);
    for (const auto& info : infos) {
      const formats::StoredTensor* want = gradients.find("grad." + info.name);
      if (want == nullptr) continue;
      ++compared;
      EXPECT_LE(relative_error(model.gradient(info), as_doubles(*want)), bounds.gradient)
          << info.name;
    }
  }
  EXPECT_EQ(compared, infos.size());
}

// What a model says before a position must not change
// by a bit when anything at or after it changes.
TEST_P(GoldenModelTest, LaterTokensChangeNothingBefore) {
  const auto& [name, kind] = GetParam();
  const auto folder = test::golden_path(name);
  const ModelConfig config =
      model_config_from_hf(read_file(folder / "config.json"), (folder / "config.json").string());
  constexpr int64_t T = 150;
  const BatchShape shape{.num_rows = T, .num_sequences = 1};
  test::SmallModel model(kind, config, shape, TrainingStep::Purpose::kTrace);
  const formats::SafetensorsFolder weights(folder);
  model.load([&](const std::string& parameter) -> const formats::StoredTensor& {
    return *weights.at(parameter).tensor;
  });
  std::vector<int32_t> ids(T), labels(T, ops::kIgnoredLabel);
  for (int64_t t = 0; t < T; ++t)
    ids[static_cast<size_t>(t)] = static_cast<int32_t>((t * t * 31 + 7 * t) % config.vocab_size);
  const std::vector<int32_t> offsets = {0, T};
  const auto logits_of = [&](const std::vector<int32_t>& tokens) {
    return model.step().trace({.ids = tokens, .labels = labels, .offsets = offsets}, 1).logits;
  };
  const std::vector<double> before = logits_of(ids);
  for (const int64_t p :
       {int64_t{1}, int64_t{16}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{130}}) {
    std::vector<int32_t> changed = ids;
    for (int64_t t = p; t < T; ++t)
      changed[static_cast<size_t>(t)] =
          static_cast<int32_t>((ids[static_cast<size_t>(t)] + 1) % config.vocab_size);
    const std::vector<double> after = logits_of(changed);
    const auto count = static_cast<std::ptrdiff_t>(p * config.vocab_size);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + count, after.begin()))
        << "position " << p;
    EXPECT_FALSE(std::equal(before.begin() + count, before.end(), after.begin() + count))
        << "position " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(TinyModels, GoldenModelTest,
                         testing::Combine(testing::Values("tiny_gdn", "tiny_kda", "tiny_hybrid"),
                                          testing::Values(DeviceKind::kReference, DeviceKind::kCpu,
                                                          DeviceKind::kCuda)),
                         [](const auto& param) {
                           return std::get<0>(param.param) + "_on_" +
                                  backend::device_kind_name(std::get<1>(param.param));
                         });

class VariantTest : public testing::TestWithParam<std::tuple<std::string, DeviceKind>> {};

// Settings that the published sizes leave alone: tests/golden/make_variants.py evaluates each.
TEST_P(VariantTest, LogitsLossAndEveryGradient) {
  const auto& [name, kind] = GetParam();
  const verify::ModelBounds bounds =
      kind == DeviceKind::kReference ? verify::kModelF64 : verify::kModelF32;
  const formats::SafetensorsFile golden(test::golden_path("variants") / (name + ".safetensors"));
  const ModelConfig config = model_config_from_hf(golden.metadata().at("config"), name);
  const auto batch = test::SmallBatch::next_tokens(golden.at("input_ids"));
  test::SmallModel model(kind, config, batch.shape(), TrainingStep::Purpose::kGradients);
  const auto& infos = model.step().parameters().infos();
  ASSERT_EQ(golden.tensors().size(), 2 * infos.size() + 3);
  model.load([&](const std::string& parameter) -> const formats::StoredTensor& {
    return golden.at(parameter);
  });
  const auto trace = model.trace(batch);
  const double expected_loss = as_doubles(golden.at("loss")).front();
  EXPECT_NEAR(trace.loss_sum / static_cast<double>(batch.num_valid()), expected_loss,
              bounds.loss * expected_loss);
  EXPECT_LE(relative_error(trace.logits, as_doubles(golden.at("logits"))), bounds.logits);
  for (const auto& info : infos) {
    EXPECT_LE(relative_error(model.gradient(info), as_doubles(golden.at("grad." + info.name))),
              bounds.gradient)
        << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, VariantTest,
    testing::Combine(testing::Values("gdn_neg_eigval", "gdn_no_gate", "gdn_mla_no_q_rank",
                                     "gdn_untied", "kda_neg_eigval", "kda_lower_bound",
                                     "kda_safe_gate", "kda_grouped", "kda_mla",
                                     "gdn_mla_double_norms"),
                     testing::Values(DeviceKind::kReference, DeviceKind::kCpu)),
    [](const auto& param) {
      return std::get<0>(param.param) + "_on_" +
             backend::device_kind_name(std::get<1>(param.param));
    });

TEST(ModelTest, RefusesMixersWithoutConvolutionsByName) {
  ModelConfig config =
      model_config_from_hf(read_file(test::golden_path("tiny_gdn") / "config.json"), "config.json");
  config.use_short_conv = false;
  try {
    const Model model(config);
    FAIL();
  } catch (const UnsupportedError& error) {
    EXPECT_STREQ(
        error.what(),
        "model: use_short_conv: expected true, got false: mixers are built with convolutions");
  }
}

}  // namespace
}  // namespace deltatrain
