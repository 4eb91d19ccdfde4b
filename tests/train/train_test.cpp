#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
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
#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"
#include "train/small_run.h"
#include "verify/tolerance.h"

namespace deltatrain::train {
namespace {

// The host's device, until it fails as a card does.
class FailingDevice final : public PassingDevice {
 public:
  using PassingDevice::PassingDevice;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override {
    if (is_broken) throw DeviceError("device test: copy: unspecified failure");
    PassingDevice::copy_to_host(to_host, from, bytes);
  }

  std::atomic<bool> is_broken = false;
  int num_allocations = 1 << 30;  // that succeed

 private:
  void* allocate(size_t bytes) override {
    if (num_allocations-- == 0) throw DeviceError("device test: memory: full");
    return PassingDevice::allocate(bytes);
  }
};

class TrainTest : public SmallRun {
 protected:
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

// Nor a finished run, which has no step to rehearse for.
TEST_F(TrainTest, ARehearsalLeavesNoTraceInARun) {
  run("plain", {});
  rehearses_ = true;
  stop_at_five("rehearsed", {});
  const auto tells = [this] {
    return std::ranges::count_if(reporter_.lines, [](const std::string& line) {
      return line.starts_with("every product tried");
    });
  };
  EXPECT_EQ(tells(), 1);
  run("rehearsed", {}, true);
  EXPECT_EQ(tells(), 2);
  run("rehearsed", {}, true);
  EXPECT_EQ(tells(), 2);
  EXPECT_EQ(weights("rehearsed", 10), weights("plain", 10));
  EXPECT_EQ(metric("rehearsed", "step", "loss"), metric("plain", "step", "loss"));
  EXPECT_EQ(metric("rehearsed", "step", "grad_norm"), metric("plain", "step", "grad_norm"));
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
    EXPECT_NEAR(losses[i], reference_losses[i], verify::kTrainedLossF32 * reference_losses[i])
        << "step " << i + 1;
    EXPECT_NEAR(norms[i], reference_norms[i], verify::kTrainedNormF32 * reference_norms[i])
        << "step " << i + 1;
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

// As a card's products do when they are first met: leaves a file in the run's folder.
class ChoosingDevice final : public PassingDevice {
 public:
  ChoosingDevice(Device& device, std::filesystem::path file)
      : PassingDevice(device), file_(std::move(file)) {}
  void copy_to_host(void* to_host, const void* from, size_t bytes) override {
    PassingDevice::copy_to_host(to_host, from, bytes);
    if (std::filesystem::exists(file_.parent_path())) std::ofstream(file_) << "{}";
    has_chosen = has_chosen || std::filesystem::exists(file_);
  }
  bool has_chosen = false;

 private:
  std::filesystem::path file_;
};

TEST_F(TrainTest, WhatFailsInTheFirstBatchLeavesNoAlgorithmsBehind) {
  const auto cpu = backend::make_backend(DeviceKind::kCpu);
  const auto plan = backend::make_backend(DeviceKind::kPlan);
  ChoosingDevice device(cpu->device(), folder_ / "new/gemm_algorithms.json");
  rehearses_ = true;
  EXPECT_THROW(run_on({&device, &cpu->table(), nullptr, DType::kF32},
                      {&plan->device(), &plan->table(), nullptr, DType::kF32}, "new",
                      {"model.vocab_size=32"}, false, {}),
               Error);
  EXPECT_TRUE(device.has_chosen);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
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
