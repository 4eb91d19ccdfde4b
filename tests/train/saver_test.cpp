// Saving beside training: what is copied when, what training waits for, and the forms that are
// written.
#include "train/saver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "config/recipe_reader.h"
#include "device/side_copy.h"
#include "formats/safetensors.h"
#include "model/training_step.h"
#include "train/small_run.h"

namespace deltatrain::train {
namespace {

constexpr auto kDelay = std::chrono::milliseconds(200);

// A device on which a save's copy is still going on when the next step's rows have come, and ends a
// while later.
class SlowCopies final : public PassingDevice, public SideCopyingDevice {
 public:
  using PassingDevice::PassingDevice;
  void copy_to_device(void* to, const void* from_host, size_t bytes) override {
    ++uploads;
    PassingDevice::copy_to_device(to, from_host, bytes);
  }
  std::unique_ptr<SideCopier> make_side_copier() override {
    return std::make_unique<Copier>(*this);
  }

  std::atomic<bool> wait_for_step = true;
  std::atomic<int> uploads = 0;
  std::atomic<int> beside_a_step = 0;  // copies that saw the next step begin

 private:
  class Copier final : public SideCopier {
   public:
    explicit Copier(SlowCopies& device) : device_(device), uploads_(device.uploads) {}
    void copy_to_host(void* to_host, const void* from, size_t bytes) override {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (device_.wait_for_step && device_.uploads == uploads_ &&
             std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      device_.beside_a_step += device_.uploads == uploads_ ? 0 : 1;
      std::this_thread::sleep_for(kDelay);
      device_.copy_to_host(to_host, from, bytes);
    }

   private:
    SlowCopies& device_;
    int uploads_;
  };
};

// A device that has no copier to give.
class RefusedCopies final : public PassingDevice, public SideCopyingDevice {
 public:
  using PassingDevice::PassingDevice;
  std::unique_ptr<SideCopier> make_side_copier() override {
    throw DeviceError("device test: pinned memory: expected 32 MiB, got none");
  }
};

using SaverTest = SmallRun;

// The next step computes while the state is copied, and changes it only then.
TEST_F(SaverTest, CopiesBesideTheNextStepWhatTheSaveFound) {
  const std::vector<std::string> overrides = {"checkpoint.save_interval=4",
                                              "checkpoint.keep_last=0"};
  run("plain", overrides);
  const auto cpu = backend::make_backend(DeviceKind::kCpu);
  const auto plan = backend::make_backend(DeviceKind::kPlan);
  SlowCopies device(cpu->device());
  run_on({&device, &cpu->table(), nullptr, DType::kF32},
         {&plan->device(), &plan->table(), nullptr, DType::kF32}, "slow", overrides, false,
         [&device, step = 0]() mutable {
           device.wait_for_step = ++step < 10;  // behind the last save comes no step
           return 0;
         });
  EXPECT_EQ(device.beside_a_step, 6);  // three parts, after steps 4 and 8; none comes after step 10
  for (const int64_t step : {4, 8, 10})
    EXPECT_EQ(weights("slow", step), weights("plain", step)) << step;
  EXPECT_EQ(metric("slow", "checkpoint", "stall_seconds").size(), 3U);
  for (const double seconds : metric("slow", "checkpoint", "copy_seconds"))
    EXPECT_GE(seconds, 3 * std::chrono::duration<double>(kDelay).count());
}

// What cannot be copied beside the next step is copied before it, and people hear why.
TEST_F(SaverTest, CopiesBeforeTheNextStepWhereTheDeviceHasNoCopier) {
  const std::vector<std::string> overrides = {"checkpoint.save_interval=4",
                                              "checkpoint.keep_last=0"};
  run("plain", overrides);
  const auto cpu = backend::make_backend(DeviceKind::kCpu);
  const auto plan = backend::make_backend(DeviceKind::kPlan);
  RefusedCopies device(cpu->device());
  reporter_.lines.clear();
  run_on({&device, &cpu->table(), nullptr, DType::kF32},
         {&plan->device(), &plan->table(), nullptr, DType::kF32}, "refused", overrides, false, {});
  for (const int64_t step : {4, 8, 10})
    EXPECT_EQ(weights("refused", step), weights("plain", step)) << step;
  EXPECT_EQ(std::count(reporter_.lines.begin(), reporter_.lines.end(),
                       "copied before the next step, not beside it: device test: pinned memory: "
                       "expected 32 MiB, got none"),
            3);
}

// Training waits for the copy before it changes the state, and for one save to be written when the
// next is due, which counts as the next one's.
TEST_F(SaverTest, CountsWhatTrainingWaitsFor) {
  const auto cpu = backend::make_backend(DeviceKind::kCpu);
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan);
  SlowCopies device(cpu->device());
  device.wait_for_step = false;
  const Context context{&device, &cpu->table(), nullptr, DType::kF32};
  const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, DType::kF32};
  const Recipe recipe = load_recipe(folder_ / "recipe.yaml", {}).recipe;
  const BatchShape shape{.num_rows = 48, .num_sequences = 1};
  const MemoryPlan plan = TrainingStep::plan(planning, recipe.model, shape);
  TrainingStep step(context, recipe.model, recipe.optimizer, shape, plan.arena());
  Saver saver(folder_ / "saved", recipe, "", {});
  const auto save = [&](int64_t number) {
    saver.save(step, {.step = number, .consumed_samples = 0, .extra = {{"completed_steps", "0"}}});
  };
  const double copies = 3 * std::chrono::duration<double>(kDelay).count();
  save(1);
  saver.finish_copy();
  const auto first = saver.finished(Saver::Wait::kYes);
  save(2);
  const auto second = saver.finished(Saver::Wait::kYes);
  save(3);
  const auto third = saver.finished(Saver::Wait::kYes);
  ASSERT_TRUE(first && second && third);
  EXPECT_GE(first->stall_seconds, copies);
  EXPECT_LT(second->stall_seconds, copies);
  EXPECT_GE(third->stall_seconds, copies);
  EXPECT_LT(first->previous_save_seconds, copies);
  EXPECT_LT(second->previous_save_seconds, copies);
  EXPECT_GE(third->previous_save_seconds, copies);
  EXPECT_EQ(checkpoint::tracked_step(folder_ / "saved"), 3);
}

TEST_F(SaverTest, WritesAHuggingFaceFolderBesideEachCheckpoint) {
  for (const char* format : {"native", "megatron"}) {
    const std::string out = std::string("hf_") + format;
    run(out, {"checkpoint.hf=true", "checkpoint.save_interval=5",
              std::string("checkpoint.format=") + format});
    run("plain", {}, std::filesystem::exists(folder_ / "plain"));
    for (const char* iteration : {"iter_0000005", "iter_0000010"}) {
      const auto hf = folder_ / (out + "/checkpoints") / iteration / "hf";
      EXPECT_TRUE(std::filesystem::exists(hf / "config.json")) << hf;
      EXPECT_TRUE(std::filesystem::exists(hf / "model.safetensors")) << hf;
    }
    const formats::SafetensorsFile hf(folder_ /
                                      (out + "/checkpoints/iter_0000010/hf/model.safetensors"));
    const formats::SafetensorsFile native(folder_ /
                                          "plain/checkpoints/iter_0000010/model.safetensors");
    ASSERT_EQ(hf.tensors().size(), native.tensors().size());
    for (const auto& [name, tensor] : native.tensors()) {
      const formats::StoredTensor& got = hf.at(name);
      ASSERT_EQ(got.bytes.size(), tensor.bytes.size()) << name;
      EXPECT_EQ(std::memcmp(got.bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0) << name;
    }
  }
}

}  // namespace
}  // namespace deltatrain::train
