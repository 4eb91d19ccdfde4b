// Tiny models against values computed by an independent float64 implementation:
// tests/golden/README.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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
#include "support/test_files.h"

namespace deltatrain {
namespace {

struct Bounds {
  double logits, loss, gradient;
};

std::vector<double> as_doubles(const formats::StoredTensor& stored) {
  std::vector<double> values(static_cast<size_t>(stored.shape.num_elements()));
  formats::read_tensor(stored, Tensor(values.data(), DType::kF64, stored.shape), "golden",
                       "tensor");
  return values;
}

// ||a - b|| / ||b|| over the first elements of a that b has.
double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

class GoldenModelTest : public testing::TestWithParam<std::tuple<std::string, DeviceKind>> {};

TEST_P(GoldenModelTest, OutputsLossAndEveryGradient) {
  const auto& [name, kind] = GetParam();
  const DType dtype = kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
  const Bounds bounds =
      kind == DeviceKind::kReference ? Bounds{2e-7, 2e-7, 2e-7} : Bounds{1e-5, 1e-6, 1e-4};

  const auto folder = test::golden_path(name);
  const ModelConfig config =
      model_config_from_hf(read_file(folder / "config.json"), (folder / "config.json").string());
  const auto backend = backend::make_backend(kind);
  backend::BackendOptions plan_options;
  plan_options.planned = kind;
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan, plan_options);
  const Context context{&backend->device(), &backend->table(), nullptr, dtype};
  const Context plan_context{&plan_backend->device(), &plan_backend->table(), nullptr, dtype};

  const formats::SafetensorsFile expected(folder / "expected_outputs.safetensors");
  const formats::StoredTensor& stored_ids = expected.at("input_ids");
  const int64_t B = stored_ids.shape[0], T = stored_ids.shape[1];
  std::vector<int32_t> ids(static_cast<size_t>(B * T));
  std::memcpy(ids.data(), stored_ids.bytes.data(), stored_ids.bytes.size());
  std::vector<int32_t> labels(ids.size(), ops::kIgnoredLabel), offsets;
  for (int64_t b = 0; b <= B; ++b) offsets.push_back(static_cast<int32_t>(b * T));
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    if ((i + 1) % static_cast<size_t>(T) != 0) labels[i] = ids[i + 1];
  }

  const BatchShape shape{.num_rows = B * T, .num_sequences = B};
  const auto purpose = TrainingStep::Purpose::kGradients;
  const MemoryPlan plan = TrainingStep::plan(plan_context, config, shape, purpose);
  TrainingStep step(context, config, OptimizerConfig{}, shape, plan.arena(), purpose);
  const formats::SafetensorsFolder weights(folder);
  ASSERT_EQ(weights.tensors().size(), step.parameters().infos().size());
  for (const auto& info : step.parameters().infos()) {
    formats::read_tensor(*weights.at(info.name).tensor, step.parameters().master(info), name,
                         info.name);
  }
  step.parameters().refresh_compute(context);

  const double valid = static_cast<double>(B * (T - 1));
  const auto trace = step.trace({.ids = ids, .labels = labels, .offsets = offsets}, 1 / valid);
  const double expected_loss = as_doubles(expected.at("loss")).front();
  EXPECT_NEAR(trace.loss_sum / valid, expected_loss, bounds.loss * expected_loss);
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
    for (const auto& info : step.parameters().infos()) {
      const formats::StoredTensor* want = gradients.find("grad." + info.name);
      if (want == nullptr) continue;
      ++compared;
      EXPECT_LE(
          relative_error(to_host(context, step.parameters().gradient(info)), as_doubles(*want)),
          bounds.gradient)
          << info.name;
    }
  }
  EXPECT_EQ(compared, step.parameters().infos().size());
}

// What a model says before a position must not change by a bit when anything at or after it
// changes.
TEST_P(GoldenModelTest, LaterTokensChangeNothingBefore) {
  const auto& [name, kind] = GetParam();
  const DType dtype = kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
  const auto folder = test::golden_path(name);
  const ModelConfig config =
      model_config_from_hf(read_file(folder / "config.json"), (folder / "config.json").string());
  const auto backend = backend::make_backend(kind);
  backend::BackendOptions plan_options;
  plan_options.planned = kind;
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan, plan_options);
  const Context context{&backend->device(), &backend->table(), nullptr, dtype};
  const Context plan_context{&plan_backend->device(), &plan_backend->table(), nullptr, dtype};
  constexpr int64_t T = 150;
  const BatchShape shape{.num_rows = T, .num_sequences = 1};
  const auto purpose = TrainingStep::Purpose::kTrace;
  const MemoryPlan plan = TrainingStep::plan(plan_context, config, shape, purpose);
  TrainingStep step(context, config, OptimizerConfig{}, shape, plan.arena(), purpose);
  const formats::SafetensorsFolder weights(folder);
  for (const auto& info : step.parameters().infos()) {
    formats::read_tensor(*weights.at(info.name).tensor, step.parameters().master(info), name,
                         info.name);
  }
  step.parameters().refresh_compute(context);
  std::vector<int32_t> ids(T), labels(T, ops::kIgnoredLabel);
  for (int64_t t = 0; t < T; ++t)
    ids[static_cast<size_t>(t)] = static_cast<int32_t>((t * t * 31 + 7 * t) % config.vocab_size);
  const std::vector<int32_t> offsets = {0, T};
  const auto logits_of = [&](const std::vector<int32_t>& tokens) {
    return step.trace({.ids = tokens, .labels = labels, .offsets = offsets}, 1).logits;
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
                                          testing::Values(DeviceKind::kReference,
                                                          DeviceKind::kCpu)),
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
