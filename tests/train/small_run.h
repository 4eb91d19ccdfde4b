// Small training runs for tests: data, a recipe, a run on any device, and what it left.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "base/files.h"
#include "base/reporter.h"
#include "checkpoint/checkpoint.h"
#include "config/recipe_reader.h"
#include "formats/indexed_dataset.h"
#include "support/test_files.h"
#include "train/trainer.h"

namespace deltatrain::train {

constexpr int64_t kVocab = 61;

// A token file whose next token follows from the last with some noise: something to learn.
inline void write_tokens(const std::filesystem::path& prefix, int64_t count, uint32_t state) {
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

class SmallRun : public testing::Test {
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
    return run_on(context, planning, out, overrides, resume, std::move(stop));
  }

  TrainResult run_on(const Context& context, const Context& planning, const std::string& out,
                     const std::vector<std::string>& overrides, bool resume,
                     std::function<int()> stop) {
    const ResolvedRecipe resolved = load_recipe(folder_ / "recipe.yaml", overrides);
    return train(context, planning, resolved,
                 {.out = folder_ / out,
                  .resume = resume,
                  .command = "test",
                  .stop_signal = std::move(stop),
                  .algorithms = {},
                  .rehearse = rehearses_},
                 reporter_);
  }

  // Stops after step 5 of 10, with a checkpoint.
  void stop_at_five(const std::string& out, const std::vector<std::string>& overrides) {
    int calls = 0;
    run(out, overrides, false, [&calls] { return ++calls == 5 ? 15 : 0; });
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

  // Keeps what people are told.
  class Notes final : public Reporter {
   public:
    void message(std::string_view, const std::string& text) override { lines.push_back(text); }
    void warning(std::string_view, const std::string& text) override { lines.push_back(text); }
    void progress(std::string_view, int64_t, int64_t, std::string_view, std::string_view) override {
    }
    std::vector<std::string> lines;
  };

  bool rehearses_ = false;
  Notes reporter_;
  test::TemporaryFolder folder_;
};

// A device that passes everything on to the host's.
class PassingDevice : public Device, protected MemoryResource {
 public:
  explicit PassingDevice(Device& device) : device_(device) {}
  DeviceKind kind() const override { return device_.kind(); }
  MemoryResource& memory() override { return *this; }
  void copy_to_device(void* to, const void* from_host, size_t bytes) override {
    device_.copy_to_device(to, from_host, bytes);
  }
  void copy_to_host(void* to_host, const void* from, size_t bytes) override {
    device_.copy_to_host(to_host, from, bytes);
  }
  void copy_on_device(void* to, const void* from, size_t bytes) override {
    device_.copy_on_device(to, from, bytes);
  }
  void fill_zero(void* data, size_t bytes) override { device_.fill_zero(data, bytes); }
  void synchronize() override { device_.synchronize(); }
  int64_t free_memory_bytes() override { return device_.free_memory_bytes(); }
  const char* description() const override { return "test"; }

 protected:
  void* allocate(size_t bytes) override { return device_.memory().allocate(bytes); }
  void release(void* data, size_t bytes) noexcept override {
    device_.memory().release(data, bytes);
  }

 private:
  Device& device_;
};

}  // namespace deltatrain::train
