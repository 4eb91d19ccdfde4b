// What a run starts from: its own checkpoint or another's, how much of it is taken, and what the
// log says.
#include "train/starting_point.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "convert/convert.h"
#include "train/small_run.h"

namespace deltatrain::train {
namespace {

using StartingPointTest = SmallRun;

TEST_F(StartingPointTest, ResumeNamesABrokenCheckpointAndFallsBackOnRequest) {
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

TEST_F(StartingPointTest, ResumesBitForBitFromItsOwnMegatronCheckpoints) {
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

TEST_F(StartingPointTest, ResumesBitForBitFromAConvertedMegatronCheckpoint) {
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

TEST_F(StartingPointTest, SaysWhatItTakesOfACheckpoint) {
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

TEST_F(StartingPointTest, RefusesWeightsAloneToGoOnFrom) {
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

TEST_F(StartingPointTest, FallsBackFromABrokenMegatronCheckpoint) {
  run("broken", {"checkpoint.save_interval=5", "checkpoint.format=megatron"});
  const auto path = folder_ / "broken/checkpoints/iter_0000010/mp_rank_00/model_optim_rng.pt";
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THROW(run("broken", {"train.train_iters=12"}, true), FormatError);
  EXPECT_EQ(run("broken", {"train.train_iters=12", "checkpoint.fallback=true"}, true).steps, 12);
  EXPECT_EQ(metric("broken", "resume", "step"), std::vector<double>{5});
}

// A learning rate and a batch changed on resume count from the next step on, and the log says so.
TEST_F(StartingPointTest, SaysWhatAChangedRecipeMeansForARunThatGoesOn) {
  run("first", {"train.train_iters=6", "schedule.lr_decay_iters=10", "checkpoint.save_interval=3"});
  run("first",
      {"train.train_iters=8", "schedule.lr_decay_iters=10", "optimizer.lr=1e-3",
       "schedule.lr_decay_style=constant", "train.global_batch_size=4",
       "checkpoint.no_load_rng=true"},
      true);
  const auto rates = metric("first", "step", "lr");
  ASSERT_EQ(rates.size(), 8U);
  EXPECT_DOUBLE_EQ(rates[6], 1e-3);
  EXPECT_EQ(metric("first", "step", "tokens")[6], (6 * 8 + 4) * 48);
  const std::string log = read_file(folder_ / "first/log.txt");
  for (const char* line : {" resume: iteration 6: data go on behind sample 48\n",
                           " resume: optimizer: weights, moments and 6 updates as stored\n",
                           " resume: learning rate: the recipe's schedule, not the checkpoint's, "
                           "after 6 steps: 1.000e-03\n",
                           " resume: global batch: 4 samples from here on, 8 before; the data "
                           "position counts samples, the "
                           "schedule steps\n",
                           "so no_load_rng changes nothing\n",
                           " resume: changed since the checkpoint, and used from here on: "
                           "optimizer.lr: 0.001, was 0.003\n"}) {
    EXPECT_NE(log.find(line), std::string::npos) << line << log;
  }
}

TEST_F(StartingPointTest, TellsHowMuchItReadAndHowFast) {
  run("told", {"train.train_iters=3"});
  run("told", {"train.train_iters=4"}, true);
  const auto path = checkpoint::checkpoint_path(folder_ / "told/checkpoints", 3);
  int64_t bytes = 0;
  const checkpoint::CheckpointReader reader(path);
  for (const auto* list : {&reader.model(), &reader.optimizer()}) {
    for (const checkpoint::TensorRecord& record : *list) bytes += 4 * record.shape.num_elements();
  }
  EXPECT_EQ(metric("told", "resume", "read_bytes"),
            std::vector<double>{static_cast<double>(bytes)});
  EXPECT_GT(metric("told", "resume", "read_seconds").at(0), 0);
  EXPECT_NE(read_file(folder_ / "told/log.txt").find(" resume: read 0."), std::string::npos);
}

// 22 samples an epoch and 8 a step: a resume in the second epoch, in the middle of it.
TEST_F(StartingPointTest, GoesOnInTheMiddleOfALaterEpoch) {
  write_tokens(folder_ / "short", 1100, 3);
  for (const char* order : {"sequential", "megatron", "megatron-cyclic"}) {
    const std::vector<std::string> overrides = {"data.train=" + (folder_ / "short").string(),
                                                std::string("data.order=") + order,
                                                "checkpoint.save_interval=5"};
    const std::string whole = std::string("whole-") + order, parts = std::string("parts-") + order;
    run(whole, overrides);
    stop_at_five(parts, overrides);
    run(parts, overrides, true);
    EXPECT_EQ(metric(parts, "step", "loss"), metric(whole, "step", "loss")) << order;
    EXPECT_EQ(weights(parts, 10), weights(whole, 10)) << order;
  }
}

// A flipped byte, a byte less, a file that is gone, files of two steps exchanged: each is named,
// and passed over for the newest whole checkpoint on request.
TEST_F(StartingPointTest, EveryKindOfDamageIsNamedAndPassedOver) {
  run("whole", {"checkpoint.save_interval=5"});
  const auto damage = [&](const std::string& out, const auto& change) {
    std::filesystem::copy(folder_ / "whole", folder_ / out,
                          std::filesystem::copy_options::recursive);
    const auto newest = checkpoint::checkpoint_path(folder_ / (out + "/checkpoints"), 10);
    change(newest);
    try {
      run(out, {"train.train_iters=12"}, true);
      ADD_FAILURE() << out << " was not found";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << out;
      EXPECT_NE(std::string(error.what()).find((newest / "optimizer.safetensors").string()),
                std::string::npos)
          << error.what();
    }
    EXPECT_EQ(run(out, {"train.train_iters=12", "checkpoint.fallback=true"}, true).steps, 12);
    EXPECT_EQ(metric(out, "resume", "step"), std::vector<double>{5}) << out;
  };
  damage("flipped", [](const std::filesystem::path& newest) {
    std::string bytes = read_file(newest / "optimizer.safetensors");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    std::ofstream(newest / "optimizer.safetensors", std::ios::binary) << bytes;
  });
  damage("cut", [](const std::filesystem::path& newest) {
    std::filesystem::resize_file(newest / "optimizer.safetensors",
                                 std::filesystem::file_size(newest / "optimizer.safetensors") - 1);
  });
  damage("gone", [](const std::filesystem::path& newest) {
    std::filesystem::remove(newest / "optimizer.safetensors");
  });
  damage("exchanged", [](const std::filesystem::path& newest) {
    const auto older = newest.parent_path() / "iter_0000005/optimizer.safetensors";
    std::filesystem::copy_file(older, newest / "optimizer.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
  });
}

}  // namespace
}  // namespace deltatrain::train
