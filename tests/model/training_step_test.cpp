#include "model/training_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/registry.h"
#include "base/files.h"
#include "config/hf_config.h"
#include "formats/safetensors.h"
#include "ops/cross_entropy.h"
#include "ops/op_table.h"
#include "small_model.h"
#include "support/test_files.h"
#include "verify/tolerance.h"

namespace deltatrain {
namespace {

void add_infinity(const Context&, const ops::SumTo& args) {
  *args.result = std::numeric_limits<double>::infinity();
}

// Finite gradients beside a loss that is not: the update sees the loss and leaves the weights alone.
TEST(TrainingStepTest, ALossThatIsNotFiniteLeavesTheStepOut) {
  const formats::SafetensorsFile golden(test::golden_path("variants") / "gdn_untied.safetensors");
  const ModelConfig config = model_config_from_hf(golden.metadata().at("config"), "gdn_untied");
  const auto batch = test::SmallBatch::next_tokens(golden.at("input_ids"));
  for (const DeviceKind kind : {DeviceKind::kReference, DeviceKind::kCpu}) {
    const auto backend = backend::make_backend(kind);
    const auto plan_backend = backend::make_backend(DeviceKind::kPlan, {.planned = kind});
    const DType dtype = kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
    const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, dtype};
    const MemoryPlan plan = TrainingStep::plan(planning, config, batch.shape());
    for (const bool finite : {true, false}) {
      ops::OpTable table = backend->table();
      if (!finite) table.elementwise.sum_to = add_infinity;
      const Context context{&backend->device(), &table, nullptr, dtype};
      TrainingStep step(context, config, OptimizerConfig{}, batch.shape(), plan.arena());
      for (const auto& info : step.parameters().infos()) {
        formats::read_tensor(golden.at(info.name), step.parameters().master(info), "golden",
                             info.name);
      }
      step.parameters().refresh_compute(context);
      const std::vector<double> before = to_host(context, step.parameters().flat_master());
      step.begin();
      step.accumulate({.ids = batch.ids, .labels = batch.labels, .offsets = batch.offsets},
                      1.0 / static_cast<double>(batch.num_valid()));
      const auto result = step.update(1e-3, 1);
      EXPECT_TRUE(std::isfinite(result.gradient_norm) && result.gradient_norm > 0);
      EXPECT_EQ(result.skipped, !finite);
      EXPECT_EQ(std::isfinite(step.loss_sum()), finite);
      EXPECT_EQ(to_host(context, step.parameters().flat_master()) == before, !finite);
    }
  }
}

// Kept besides are two more bytes for each number of the stream after the embedding and after every sum; backward has
// its gradient in f32 and rounded.
TEST(TrainingStepTest, AnF32StreamTakesTheBytesOfItsNumbers) {
  const ModelConfig config = model_config_from_hf(
      read_file(test::golden_path("tiny_hybrid") / "config.json"), "tiny_hybrid");
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan, {.planned = DeviceKind::kCpu});
  const BatchShape shape{.num_rows = 256, .num_sequences = 2, .loss_chunk_rows = 1};
  const auto plan_of = [&](ResidualStream stream) {
    return TrainingStep::plan({&plan_backend->device(), &plan_backend->table(), nullptr,
                               DType::kBF16, stream},
                              config, shape);
  };
  const MemoryPlan without = plan_of(ResidualStream::kActivation);
  const MemoryPlan with = plan_of(ResidualStream::kF32);
  const int64_t numbers = shape.num_rows * config.hidden_size;
  EXPECT_EQ(with.saved_activations - without.saved_activations,
            (2 * config.num_hidden_layers + 1) * numbers * 2);
  EXPECT_EQ(with.scratch - without.scratch, numbers * 4);
  EXPECT_EQ(with.parameters, without.parameters);
}

// Against the logits of a whole row, whose values golden_model_test.cpp checks; what stands behind the
// tokens that count does not matter.
TEST(TrainingStepTest, LogitsOfTheNextTokenAreThoseOfTheRow) {
  const auto folder = test::golden_path("tiny_hybrid");
  const ModelConfig config = model_config_from_hf(read_file(folder / "config.json"), "tiny_hybrid");
  const formats::SafetensorsFolder weights(folder);
  constexpr int64_t R = 40;
  std::vector<int32_t> ids(R), labels(R, ops::kIgnoredLabel);
  for (size_t t = 0; t < ids.size(); ++t)
    ids[t] = static_cast<int32_t>((t * t * 31 + 7 * t) % static_cast<size_t>(config.vocab_size));
  const std::vector<int32_t> offsets = {0, R};
  for (const DeviceKind kind : {DeviceKind::kReference, DeviceKind::kCpu}) {
    const verify::ModelBounds bounds =
        kind == DeviceKind::kReference ? verify::kModelF64 : verify::kModelF32;
    const auto load = [&](test::SmallModel& model) {
      model.load([&](const std::string& name) -> const formats::StoredTensor& {
        return *weights.at(name).tensor;
      });
    };
    test::SmallModel whole(kind, config, {.num_rows = R, .num_sequences = 1},
                           TrainingStep::Purpose::kTrace);
    // Planned for more rows in two sequences, as in training.
    test::SmallModel trained(kind, config, {.num_rows = 128, .num_sequences = 2},
                             TrainingStep::Purpose::kTrain);
    load(whole);
    load(trained);
    const std::vector<double> rows =
        whole.step().trace({.ids = ids, .labels = labels, .offsets = offsets}, 1).logits;
    for (const int64_t count : {int64_t{1}, int64_t{17}, R}) {
      std::vector<int32_t> padded = ids;
      std::fill(padded.begin() + count, padded.end(), 3);
      const std::vector<float> logits = trained.step().next_token_logits(padded, count);
      const auto begin = rows.begin() + (count - 1) * config.vocab_size;
      EXPECT_LE(test::relative_error({logits.begin(), logits.end()},
                                     {begin, begin + config.vocab_size}),
                kind == DeviceKind::kReference ? 1e-7 : bounds.logits)  // they come as f32
          << count;
    }
  }
}

}  // namespace
}  // namespace deltatrain
