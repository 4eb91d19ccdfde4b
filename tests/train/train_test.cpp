#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "formats/indexed_dataset.h"
#include "support/test_files.h"

namespace deltatrain::train {
namespace {

constexpr int64_t kVocab = 61;

// A token file whose next token follows from the last with some noise: something to learn.
void write_tokens(const std::filesystem::path& prefix, int64_t count, uint32_t state) {
  formats::IndexedDatasetWriter writer(prefix.string(), formats::TokenType::kU16);
  std::vector<int32_t> document;
  int32_t a = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const int32_t next = state >> 29 == 0 ? static_cast<int32_t>((state >> 8) % kVocab)
                                          : (3 * a + 7) % static_cast<int32_t>(kVocab);
    document.push_back(next);
    a = next;
    if (document.size() == 500) {
      writer.add_document(document);
      document.clear();
    }
  }
  writer.commit();
}

class TrainTest : public testing::Test {
 protected:
  void SetUp() override {
    write_tokens(folder_ / "train", 40000, 1);
    write_tokens(folder_ / "valid", 4000, 2);
    std::ofstream(folder_ / "recipe.yaml") << R"(
model:
  model_type: gated_deltanet
  vocab_size: 61
  hidden_size: 64
  intermediate_size: 128
  num_hidden_layers: 2
  num_heads: 2
  num_v_heads: 2
  head_dim: 16
  expand_v: 1
data:
  train: )" << (folder_ / "train").string() << R"(
  valid: )" << (folder_ / "valid").string() << R"(
optimizer:
  lr: 3e-3
  min_lr: 3e-4
  weight_decay: 0.1
schedule:
  lr_warmup_iters: 2
train:
  train_iters: 10
  micro_batch_size: 2
  global_batch_size: 8
  seq_length: 48
  seed: 7
  eval_iters: 2
)";
  }

  TrainResult run(const std::string& out, std::vector<std::string> overrides, bool resume = false,
                  std::function<int()> stop = {}, DeviceKind kind = DeviceKind::kCpu) {
    const DType dtype = kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
    const auto backend = backend::make_backend(kind);
    backend::BackendOptions plan_options;
    plan_options.planned = kind;
    const auto plan = backend::make_backend(DeviceKind::kPlan, plan_options);
    const Context context{&backend->device(), &backend->table(), nullptr, dtype};
    const Context planning{&plan->device(), &plan->table(), nullptr, dtype};
    const ResolvedRecipe resolved = load_recipe(folder_ / "recipe.yaml", overrides);
    return train(context, planning, resolved,
                 {.out = folder_ / out,
                  .resume = resume,
                  .command = "test",
                  .stop_signal = std::move(stop),
                  .algorithms = {}},
                 silent_reporter());
  }

  // One field of all lines of a kind, in order.
  std::vector<double> metric(const std::string& out, const std::string& kind,
                             const std::string& field) const {
    std::ifstream file(folder_ / (out + "/metrics.jsonl"));
    std::vector<double> values;
    std::string line;
    while (std::getline(file, line)) {
      const auto entry = nlohmann::json::parse(line);
      if (entry["kind"] == kind)
        values.push_back(entry[field].is_null() ? std::nan("") : entry[field].get<double>());
    }
    return values;
  }

  std::string weights(const std::string& out, int64_t step) const {
    const auto path = checkpoint::checkpoint_path(folder_ / (out + "/checkpoints"), step);
    return read_file(path / "model.safetensors") + read_file(path / "optimizer.safetensors");
  }

  test::TemporaryFolder folder_;
};

TEST_F(TrainTest, LearnsAndWritesWhatItPromises) {
  const TrainResult result = run("a", {"train.train_iters=60"});
  EXPECT_EQ(result.steps, 60);
  const auto losses = metric("a", "step", "loss");
  ASSERT_EQ(losses.size(), 60U);
  EXPECT_NEAR(losses[0], std::log(kVocab), 0.1);  // uniform before the first update
  EXPECT_LT(losses.back(), losses[0] - 0.5);
  ASSERT_TRUE(result.validation_loss.has_value());
  EXPECT_LT(*result.validation_loss, std::log(kVocab) - 0.5);
  for (const char* name :
       {"recipe.yaml", "metrics.jsonl", "log.txt", "ranks/0.json",
        "checkpoints/latest_checkpointed_iteration.txt", "checkpoints/iter_0000060/config.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / (std::string("a/") + name))) << name;
  }
  // The learning rate in the log is the one that was used: the first step of a warm-up has none.
  EXPECT_EQ(metric("a", "step", "lr")[0], 0);
  EXPECT_DOUBLE_EQ(metric("a", "step", "lr")[1], 1.5e-3);
  // The stored recipe alone repeats the run.
  const std::string stored = read_file(folder_ / "a/recipe.yaml");
  EXPECT_EQ(parse_recipe(stored, "stored", {}).to_yaml(), stored);
}

TEST_F(TrainTest, ResumingEqualsNotStoppingBitForBit) {
  run("whole", {"checkpoint.save_interval=5"});
  int calls = 0;
  const TrainResult stopped = run("parts", {}, false, [&calls] { return ++calls == 5 ? 15 : 0; });
  EXPECT_EQ(stopped.stopped_by_signal, 15);
  EXPECT_EQ(stopped.steps, 5);
  const TrainResult resumed = run("parts", {}, true);
  EXPECT_EQ(resumed.steps, 10);
  EXPECT_EQ(weights("parts", 5), weights("whole", 5));
  EXPECT_EQ(weights("parts", 10), weights("whole", 10));
  EXPECT_EQ(metric("parts", "step", "loss"), metric("whole", "step", "loss"));
  EXPECT_EQ(metric("parts", "step", "grad_norm"), metric("whole", "step", "grad_norm"));
}

// The reference backend (plain loops in double precision) trains the same ten steps; the CPU
// backend has to follow it, and both the losses that are written down here, so that a change of
// either shows.
TEST_F(TrainTest, TenPinnedLossesOfCpuAndReference) {
  run("cpu", {});
  run("reference", {}, false, {}, DeviceKind::kReference);
  const auto losses = metric("cpu", "step", "loss"),
             reference_losses = metric("reference", "step", "loss");
  const auto norms = metric("cpu", "step", "grad_norm"),
             reference_norms = metric("reference", "step", "grad_norm");
  const std::vector<double> pinned = {4.1307623, 4.0510628, 3.9743876, 3.6703580, 3.4367663,
                                      3.2773804, 3.1628496, 3.0671928, 3.0119889, 2.9799369};
  ASSERT_EQ(losses.size(), pinned.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(reference_losses[i], pinned[i], 1e-6) << "step " << i + 1;
    EXPECT_NEAR(losses[i], reference_losses[i], 1e-5 * reference_losses[i]) << "step " << i + 1;
    EXPECT_NEAR(norms[i], reference_norms[i], 1e-4 * reference_norms[i]) << "step " << i + 1;
  }
}

TEST_F(TrainTest, SplittingTheGlobalBatchChangesNothing) {
  const std::vector<std::string> common = {"train.global_batch_size=16", "train.train_iters=3"};
  std::vector<std::vector<double>> losses, norms;
  for (const char* micro : {"1", "4", "16"}) {
    auto overrides = common;
    overrides.push_back(std::string("train.micro_batch_size=") + micro);
    run(std::string("m") + micro, overrides);
    losses.push_back(metric(std::string("m") + micro, "step", "loss"));
    norms.push_back(metric(std::string("m") + micro, "step", "grad_norm"));
  }
  for (size_t i = 0; i < losses[0].size(); ++i) {
    for (size_t j = 1; j < losses.size(); ++j) {
      EXPECT_NEAR(losses[j][i], losses[0][i], 1e-6 * losses[0][i]) << i;
      EXPECT_NEAR(norms[j][i], norms[0][i], 1e-6 * norms[0][i]) << i;
    }
  }
}

TEST_F(TrainTest, StopsAtANonFiniteStepAndKeepsTheLastCheckpoint) {
  // A learning rate that throws the weights out of range within a few steps.
  const std::vector<std::string> wild = {"optimizer.lr=1e30", "optimizer.min_lr=0",
                                         "optimizer.clip_grad=0", "checkpoint.save_interval=1",
                                         "checkpoint.keep_last=0"};
  EXPECT_THROW(run("wild", wild), NumericError);
  const auto tracked = checkpoint::tracked_step(folder_ / "wild/checkpoints");
  ASSERT_TRUE(tracked.has_value());
  const auto losses = metric("wild", "step", "loss");
  EXPECT_EQ(*tracked, static_cast<int64_t>(losses.size()) - 1);
  EXPECT_NO_THROW(checkpoint::CheckpointReader(folder_ / "wild").verify_checksums());
}

TEST_F(TrainTest, SkipsNonFiniteStepsOnRequest) {
  std::vector<std::string> wild = {"optimizer.lr=1e30", "optimizer.min_lr=0",
                                   "optimizer.clip_grad=0", "train.on_nonfinite=skip",
                                   "train.train_iters=8"};
  const TrainResult result = run("skip", wild);
  EXPECT_EQ(result.steps, 8);
  int64_t skipped = 0;
  for (const double norm : metric("skip", "step", "grad_norm"))
    skipped += std::isfinite(norm) ? 0 : 1;
  EXPECT_GT(skipped, 0);
}

TEST_F(TrainTest, RefusesAFolderWithFilesInIt) {
  std::filesystem::create_directories(folder_ / "used");
  std::ofstream(folder_ / "used/notes.txt") << "mine";
  try {
    run("used", {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), (folder_ / "used").string() +
                                ": --out: expected an empty or new folder (or --resume), got a "
                                "folder with files in it");
  }
  EXPECT_EQ(read_file(folder_ / "used/notes.txt"), "mine");
}

TEST_F(TrainTest, ResumeNamesABrokenCheckpointAndFallsBackOnRequest) {
  run("broken", {"checkpoint.save_interval=5"});
  const auto path =
      checkpoint::checkpoint_path(folder_ / "broken/checkpoints", 10) / "model.safetensors";
  std::string bytes = read_file(path);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THROW(run("broken", {"train.train_iters=12"}, true), FormatError);
  const TrainResult result =
      run("broken", {"train.train_iters=12", "checkpoint.fallback=true"}, true);
  EXPECT_EQ(result.steps, 12);
}

TEST_F(TrainTest, RefusesCheckpointFormsItDoesNotWrite) {
  for (const char* setting : {"checkpoint.format=megatron", "checkpoint.hf=true"}) {
    EXPECT_THROW(run("refused", {setting}), UnsupportedError) << setting;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "refused")) << setting;
  }
}

}  // namespace
}  // namespace deltatrain::train
