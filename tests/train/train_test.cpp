#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "base/files.h"
#include "base/reporter.h"
#include "checkpoint/checkpoint.h"
#include "convert/convert.h"
#include "formats/indexed_dataset.h"
#include "formats/safetensors.h"
#include "support/test_files.h"
#include "text/tokenizer.h"
#include "verify/tolerance.h"

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
                  .algorithms = {}},
                 reporter_);
  }

  // Stops after step 5 of 10, with a checkpoint.
  void stop_at_five(const std::string& out, const std::vector<std::string>& overrides) {
    int calls = 0;
    run(out, overrides, false, [&calls] { return ++calls == 5 ? 15 : 0; });
  }

  // The host's device, until it fails as a card does.
  class FailingDevice final : public Device, private MemoryResource {
   public:
    explicit FailingDevice(Device& device) : device_(device) {}
    DeviceKind kind() const override { return device_.kind(); }
    MemoryResource& memory() override { return *this; }
    void copy_to_device(void* to, const void* from_host, size_t bytes) override {
      device_.copy_to_device(to, from_host, bytes);
    }
    void copy_to_host(void* to_host, const void* from, size_t bytes) override {
      if (is_broken) throw DeviceError("device test: copy: unspecified failure");
      device_.copy_to_host(to_host, from, bytes);
    }
    void copy_on_device(void* to, const void* from, size_t bytes) override {
      device_.copy_on_device(to, from, bytes);
    }
    void fill_zero(void* data, size_t bytes) override { device_.fill_zero(data, bytes); }
    void synchronize() override { device_.synchronize(); }
    int64_t free_memory_bytes() override { return device_.free_memory_bytes(); }
    const char* description() const override { return "test"; }

    bool is_broken = false;
    int num_allocations = 1 << 30;  // that succeed

   private:
    void* allocate(size_t bytes) override {
      if (num_allocations-- == 0) throw DeviceError("device test: memory: full");
      return device_.memory().allocate(bytes);
    }
    void release(void* data, size_t bytes) noexcept override {
      device_.memory().release(data, bytes);
    }

    Device& device_;
  };

  // run() on the CPU through a FailingDevice that `prepare` has seen; `stop` may break it later.
  void run_failing(const std::string& out, const std::function<void(FailingDevice&)>& prepare,
                   const std::function<int(FailingDevice&)>& stop) {
    const auto cpu = backend::make_backend(DeviceKind::kCpu);
    const auto plan = backend::make_backend(DeviceKind::kPlan);
    FailingDevice device(cpu->device());
    prepare(device);
    run_on({&device, &cpu->table(), nullptr, DType::kF32},
           {&plan->device(), &plan->table(), nullptr, DType::kF32}, out,
           {"checkpoint.save_interval=4"}, false, [&] { return stop(device); });
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

  Notes reporter_;
  test::TemporaryFolder folder_;
};

TEST_F(TrainTest, ADeviceErrorNamesTheStepAndLeavesTheLastCheckpointGood) {
  int asked = 0;
  try {
    run_failing(
        "broken", [](FailingDevice&) {},
        [&](FailingDevice& device) {
          device.is_broken = device.is_broken || ++asked == 7;
          return 0;
        });
    FAIL() << "no error";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("device test: copy: unspecified failure (in step ")) << text;
    EXPECT_TRUE(text.ends_with("are as they were)")) << text;
  }
  EXPECT_EQ(checkpoint::tracked_step(folder_ / "broken/checkpoints"), 4);
  run("whole", {"checkpoint.save_interval=4"});
  run("broken", {"checkpoint.save_interval=4"}, true);
  EXPECT_EQ(weights("broken", 10), weights("whole", 10));
}

TEST_F(TrainTest, SaysWhatThereWasNoMemoryFor) {
  std::vector<std::string> purposes;
  for (int succeed = 0; succeed < 8; ++succeed) {
    try {
      run_failing(
          "full", [&](FailingDevice& device) { device.num_allocations = succeed; },
          [](FailingDevice&) { return 0; });
    } catch (const DeviceError& error) {
      const std::string text = error.what();
      const size_t at = text.find(" (for ");
      if (at != std::string::npos) purposes.push_back(text.substr(at + 6, text.size() - at - 7));
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "full")) << "something was left behind";
  }
  for (const char* purpose :
       {"the weights", "the gradients", "the optimizer's state", "activations and scratch"}) {
    EXPECT_NE(std::find(purposes.begin(), purposes.end(), purpose), purposes.end()) << purpose;
  }
}

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

// The reference backend (plain loops in double precision)
// trains the same ten steps; the CPU backend has to follow it, and both
// the losses that are written down here, so that a change of either shows.
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
    EXPECT_NEAR(reference_losses[i], pinned[i], verify::kPinnedLoss) << "step " << i + 1;
    EXPECT_NEAR(losses[i], reference_losses[i], verify::kTrainedLossF32 * reference_losses[i]) << "step " << i + 1;
    EXPECT_NEAR(norms[i], reference_norms[i], verify::kTrainedNormF32 * reference_norms[i]) << "step " << i + 1;
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
      EXPECT_NEAR(losses[j][i], losses[0][i], verify::kMicroBatchesF32 * losses[0][i]) << i;
      EXPECT_NEAR(norms[j][i], norms[0][i], verify::kMicroBatchesF32 * norms[0][i]) << i;
    }
  }
}

// Documents of 500 tokens in rows of 96: most rows hold one, some the border of two. Each label
// that counts, counts alike however the global batch is split, and on both backends.
TEST_F(TrainTest, PackedDocumentsAndMaskedEndsCountAlikeInAnySplit) {
  const std::vector<std::string> common = {
      "data.packed_documents=true", "data.eod_mask_loss=true", "model.eos_token_id=9",
      "train.seq_length=96",        "train.train_iters=4",     "train.global_batch_size=8"};
  std::vector<std::vector<double>> losses, norms;
  const auto add = [&](const std::string& out, const std::string& micro, DeviceKind kind) {
    auto overrides = common;
    overrides.push_back("train.micro_batch_size=" + micro);
    run(out, overrides, false, {}, kind);
    losses.push_back(metric(out, "step", "loss"));
    norms.push_back(metric(out, "step", "grad_norm"));
  };
  add("reference", "2", DeviceKind::kReference);
  add("one", "1", DeviceKind::kCpu);
  add("eight", "8", DeviceKind::kCpu);
  for (size_t i = 0; i < losses[0].size(); ++i) {
    for (size_t j = 1; j < losses.size(); ++j) {
      EXPECT_NEAR(losses[j][i], losses[0][i], 1e-5 * losses[0][i]) << i;
      EXPECT_NEAR(norms[j][i], norms[0][i], 1e-4 * norms[0][i]) << i;
    }
  }
  run("unpacked", {"train.seq_length=96", "train.train_iters=4"});
  EXPECT_NE(metric("unpacked", "step", "loss"), losses[1]);
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
  EXPECT_EQ(result.skipped_steps, skipped);
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

TEST_F(TrainTest, TellsWhichParametersDecay) {
  run("told", {"train.train_iters=3"});
  // Of each block A_log and dt_bias (2 value heads each) and the norms of the mixer's output (16),
  // the mixer and the MLP (64 each) do not decay, nor does the final norm (64).
  const std::string line = "11 tensors of 360 do not";
  EXPECT_TRUE(std::any_of(reporter_.lines.begin(), reporter_.lines.end(),
                          [&](const std::string& text) { return text.ends_with(line); }));
}

// The message of the ConfigError that the run must end with.
std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no ConfigError";
  return "";
}

TEST_F(TrainTest, RefusesARecipeWithoutTrainingDataByName) {
  EXPECT_EQ(refusal([&] { run("nothing", {"data.train="}); }),
            "recipe: data.train: expected the prefix of token files, in the file or by --set, got "
            "nothing");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "nothing"));
}

TEST_F(TrainTest, WhatFailsBeforeTheFirstStepLeavesNothingBehind) {
  run("other", {"train.train_iters=3"});
  const std::vector<std::string> wrong = {"checkpoint.init_from=" + (folder_ / "other").string(),
                                          "model.hidden_size=32"};
  EXPECT_THROW(run("new", wrong), FormatError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
  // An empty folder that was there stays, empty: the next run can have it.
  std::filesystem::create_directories(folder_ / "there");
  EXPECT_THROW(run("there", wrong), FormatError);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "there"));
  EXPECT_EQ(run("there", {"train.train_iters=3"}).steps, 3);
}

// A byte-level tokenizer of the 256 bytes and two special tokens: ids 0 to 257.
void write_byte_tokenizer(const std::filesystem::path& path) {
  nlohmann::json vocab;
  int id = 0;
  const auto add = [&](const std::string& token) { vocab[token] = id++; };
  add("<s>");
  add("</s>");
  // The printable form of GPT-2's byte table: bytes without a glyph are moved to U+0100 and on.
  int moved = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : 256 + moved++;
    add(code < 128 ? std::string(1, static_cast<char>(code))
                   : std::string{static_cast<char>(0xc0 | (code >> 6)),
                                 static_cast<char>(0x80 | (code & 0x3f))});
  }
  const nlohmann::json special = {{"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", true}};
  nlohmann::json bos = special, eos = special;
  bos["id"] = 0;
  bos["content"] = "<s>";
  eos["id"] = 1;
  eos["content"] = "</s>";
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  std::ofstream(path) << nlohmann::json{
      {"version", "1.0"},
      {"added_tokens", {bos, eos}},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

TEST_F(TrainTest, ATokenizerFileIsKeptUnderTheNameThatIsLookedFor) {
  const auto file = folder_ / "my-words.json";
  write_byte_tokenizer(file);
  run("named", {"train.train_iters=3", "model.vocab_size=300", "data.tokenizer=" + file.string()});
  const auto checkpoint = checkpoint::checkpoint_path(folder_ / "named/checkpoints", 3);
  EXPECT_EQ(read_file(checkpoint / "tokenizer.json"), read_file(file));
  EXPECT_EQ(text::Tokenizer::load(checkpoint).encode("a", text::AddSpecialTokens::kNo),
            text::Tokenizer::load(file).encode("a", text::AddSpecialTokens::kNo));
}

TEST_F(TrainTest, ATokenizerThatCannotServeTheModelIsRefusedBeforeTraining) {
  const auto file = folder_ / "tokenizer.json";
  write_byte_tokenizer(file);
  EXPECT_EQ(refusal([&] { run("small", {"data.tokenizer=" + file.string()}); }),
            file.string() + ": vocabulary: expected at most model.vocab_size (61), got 258");
  std::ofstream(file) << "no tokenizer";
  EXPECT_THROW(run("broken", {"data.tokenizer=" + file.string()}), Error);
  std::filesystem::create_directories(folder_ / "none");
  EXPECT_THROW(run("none-in-it", {"data.tokenizer=" + (folder_ / "none").string()}), FileError);
  for (const char* name : {"small", "broken", "none-in-it"})
    EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << name;
}

TEST_F(TrainTest, ResumingAFinishedRunTrainsNothingAndNamesNoLoss) {
  const TrainResult first = run("done", {"train.train_iters=3"});
  ASSERT_TRUE(first.last_loss.has_value());
  EXPECT_EQ(*first.last_loss, metric("done", "step", "loss").back());
  const TrainResult again = run("done", {"train.train_iters=3"}, true);
  EXPECT_EQ(again.steps, 3);
  EXPECT_FALSE(again.last_loss.has_value());
  EXPECT_EQ(metric("done", "step", "loss").size(), 3U);
}

TEST_F(TrainTest, ResumesBitForBitFromItsOwnMegatronCheckpoints) {
  run("whole", {"checkpoint.save_interval=5"});
  for (const char* args : {"none", "namespace"}) {
    const std::string out = std::string("parts_") + args;
    const std::string setting = std::string("checkpoint.megatron_args=") + args;
    stop_at_five(out, {"checkpoint.format=megatron", setting});
    EXPECT_TRUE(std::filesystem::exists(
        folder_ / (out + "/checkpoints/iter_0000005/mp_rank_00/model_optim_rng.pt")));
    EXPECT_EQ(checkpoint::tracked_step(folder_ / (out + "/checkpoints")), 5);
    run(out, {}, true);  // the last checkpoint in the native form, to compare
    EXPECT_EQ(weights(out, 10), weights("whole", 10)) << args;
    EXPECT_EQ(metric(out, "step", "loss"), metric("whole", "step", "loss")) << args;
    EXPECT_EQ(metric(out, "resume", "consumed_samples"), std::vector<double>{40}) << args;
  }
}

TEST_F(TrainTest, ResumesBitForBitFromAConvertedMegatronCheckpoint) {
  run("whole", {"checkpoint.save_interval=5"});
  stop_at_five("megatron", {"checkpoint.format=megatron", "checkpoint.megatron_args=namespace",
                            "checkpoint.megatron_spec=te"});
  // As Megatron would have written it: nothing of ours beside the file.
  const auto iteration = folder_ / "megatron/checkpoints/iter_0000005";
  std::filesystem::remove(iteration / "recipe.yaml");
  std::filesystem::remove(iteration / "config.json");
  convert::TargetOptions target;
  target.to = folder_ / "native/checkpoints";
  target.format = convert::TargetFormat::kNative;
  target.round_trip = true;
  const auto report =
      convert::convert_model(folder_ / "megatron/checkpoints", target, silent_reporter());
  EXPECT_TRUE(report.optimizer && report.round_trip_exact && !report.lossy);
  run("native", {}, true);
  EXPECT_EQ(weights("native", 10), weights("whole", 10));
}

TEST_F(TrainTest, WritesAHuggingFaceFolderBesideEachCheckpoint) {
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

TEST_F(TrainTest, SaysWhatItTakesOfACheckpoint) {
  run("first", {"train.train_iters=6", "schedule.lr_decay_iters=10", "checkpoint.save_interval=3"});
  const std::string load = "checkpoint.load=" + (folder_ / "first").string();
  const auto rate = [&](const std::string& out) { return metric(out, "step", "lr").front(); };
  const auto first_step = [&](const std::string& out) {
    return metric(out, "step", "step").front();
  };
  const auto said = [&](const std::string& out) { return read_file(folder_ / (out + "/log.txt")); };

  run("on", {load});
  EXPECT_EQ(first_step("on"), 7);
  EXPECT_NE(said("on").find("optimizer: weights, moments and 6 updates as stored"),
            std::string::npos);
  run("earlier", {load, "checkpoint.ckpt_step=3"});
  EXPECT_EQ(first_step("earlier"), 4);
  // The same three steps again, from the same state.
  EXPECT_EQ(metric("earlier", "step", "loss")[2], metric("first", "step", "loss")[5]);

  run("no_optimizer", {load, "checkpoint.no_load_optim=true"});
  EXPECT_EQ(first_step("no_optimizer"), 7);
  EXPECT_EQ(rate("no_optimizer"), 0);  // the warm-up begins again
  EXPECT_NE(said("no_optimizer").find("the schedule starts at its beginning (no_load_optim)"),
            std::string::npos);

  run("finetune", {load, "checkpoint.finetune=true", "train.train_iters=3"});
  EXPECT_EQ(first_step("finetune"), 1);
  EXPECT_EQ(metric("finetune", "step", "tokens").front(), 8 * 48);
  EXPECT_LT(metric("finetune", "step", "loss").front(), metric("first", "step", "loss").front());

  // The learning rate is the recipe's; Megatron's override_opt_param_scheduler.
  run("rate", {load, "optimizer.lr=1e-3", "schedule.lr_decay_style=constant"});
  EXPECT_DOUBLE_EQ(rate("rate"), 1e-3);
  EXPECT_NE(said("rate").find("learning rate: the recipe's schedule, not the checkpoint's, after 6 "
                              "steps: 1.000e-03"),
            std::string::npos);
  run("batch", {load, "train.global_batch_size=4", "checkpoint.no_load_rng=true"});
  EXPECT_EQ(metric("batch", "step", "tokens").front(), (6 * 8 + 4) * 48);
  EXPECT_NE(said("batch").find("global batch: 4 samples from here on, 8 before"),
            std::string::npos);
  EXPECT_NE(said("batch").find("so no_load_rng changes nothing"), std::string::npos);
  EXPECT_THROW(run("both", {load, "checkpoint.init_from=" + (folder_ / "first").string()}),
               ConfigError);
}

TEST_F(TrainTest, RefusesWeightsAloneToGoOnFrom) {
  run("first", {"train.train_iters=6"});
  std::filesystem::remove(folder_ / "first/checkpoints/iter_0000006/state.json");
  // A Hugging Face folder has no iteration: it starts at 0. A checkpoint of weights alone does not.
  convert::TargetOptions target;
  target.to = folder_ / "weights";
  target.format = convert::TargetFormat::kMegatron;
  run("second",
      {"train.train_iters=6", "checkpoint.format=megatron", "checkpoint.megatron_args=namespace"});
  std::filesystem::remove(folder_ / "second/checkpoints/iter_0000006/recipe.yaml");
  convert::convert_model(folder_ / "second", target,
                         silent_reporter());  // leaves the optimizer out
  try {
    run("on", {"checkpoint.load=" + (folder_ / "weights").string()});
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("optimizer: expected its state, got none; "
                        "checkpoint.no_load_optim: true"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(
      run("other", {"checkpoint.load=" + (folder_ / "second").string(), "model.hidden_size=32"}),
      Error);
}

TEST_F(TrainTest, FallsBackFromABrokenMegatronCheckpoint) {
  run("broken", {"checkpoint.save_interval=5", "checkpoint.format=megatron"});
  const auto path = folder_ / "broken/checkpoints/iter_0000010/mp_rank_00/model_optim_rng.pt";
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THROW(run("broken", {"train.train_iters=12"}, true), FormatError);
  EXPECT_EQ(run("broken", {"train.train_iters=12", "checkpoint.fallback=true"}, true).steps, 12);
  EXPECT_EQ(metric("broken", "resume", "step"), std::vector<double>{5});
}

TEST_F(TrainTest, RefusesFormsThatItsModelDoesNotHaveBeforeItStarts) {
  EXPECT_THROW(run("refused", {"checkpoint.format=megatron", "model.allow_neg_eigval=true"}),
               UnsupportedError);
  for (const char* form : {"checkpoint.hf=true", "checkpoint.format=megatron"}) {
    EXPECT_THROW(run("refused", {form, "model.attn.double_norms=true", "model.attn.layers=[0]",
                                 "model.attn.num_heads=2", "model.attn.kv_lora_rank=8",
                                 "model.attn.qk_nope_head_dim=4", "model.attn.qk_rope_head_dim=4",
                                 "model.attn.v_head_dim=4"}),
                 UnsupportedError);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
}

}  // namespace
}  // namespace deltatrain::train
