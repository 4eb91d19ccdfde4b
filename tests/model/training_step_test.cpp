#include "model/training_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/registry.h"
#include "config/hf_config.h"
#include "formats/safetensors.h"
#include "ops/op_table.h"
#include "small_model.h"
#include "support/test_files.h"

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

}  // namespace
}  // namespace deltatrain
