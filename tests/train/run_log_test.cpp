#include "train/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "report/megatron_log.h"
#include "report/run_reader.h"
#include "report/windows.h"
#include "support/test_files.h"
#include "train/log_line.h"

namespace deltatrain::train {
namespace {

using ::testing::HasSubstr;

// Fields and widths as Megatron prints them, typed from their description.
TEST(LogLineTest, HasMegatronsFieldsAndWidths) {
  const LogLine line{.iteration = 100,
                     .total_iterations = 4768,
                     .consumed_samples = 102400,
                     .milliseconds_per_iteration = 1431.64,
                     .tflops_per_device = 342.27,
                     .learning_rate = 1e-6,
                     .global_batch_size = 1024,
                     .loss = 9.601,
                     .gradient_norm = 1.2346,
                     .skipped_iterations = 2,
                     .nan_iterations = 1};
  const std::string text = format_log_line(line, 1769860801.25);
  EXPECT_TRUE(
      std::regex_search(text, std::regex("^ \\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}\\.250000\\] ")))
      << text;
  EXPECT_THAT(
      text,
      HasSubstr(
          "] iteration      100/    4768 | consumed samples:       102400 | elapsed time per "
          "iteration (ms): 1431.6 | throughput per GPU (TFLOP/s/GPU): 342.3 | learning rate: "
          "1.000000E-06 | global batch size:  1024 | lm loss: 9.601000E+00 | loss scale: 1.0 | "
          "grad norm: 1.235 | number of skipped iterations:   2 | number of nan iterations:   1 "
          "|"));
  LogLine without = line;
  without.loss = std::nan("");
  EXPECT_EQ(format_log_line(without, 0).find("lm loss"), std::string::npos);
}

class RunLogTest : public testing::Test {
 protected:
  class Notes final : public Reporter {
   public:
    void message(std::string_view, const std::string& text) override { lines.push_back(text); }
    void warning(std::string_view, const std::string& text) override { warnings.push_back(text); }
    void progress(std::string_view, int64_t, int64_t, std::string_view,
                  std::string_view detail) override {
      details.emplace_back(detail);
    }
    std::vector<std::string> lines, warnings, details;
  };

  RunLogTest() {
    recipe_.model.family = ModelFamily::kGatedDeltaNet;
    recipe_.model.vocab_size = 61;
    recipe_.model.hidden_size = 64;
    recipe_.model.intermediate_size = 128;
    recipe_.model.num_hidden_layers = 2;
    recipe_.model.num_heads = recipe_.model.num_v_heads = 2;
    recipe_.model.head_dim = 16;
    recipe_.train.train_iters = 25;
    recipe_.train.global_batch_size = 4;
    recipe_.train.seq_length = 8;
    recipe_.log.log_interval = 10;
  }

  static double loss_of(int64_t step) { return 8 - 0.1 * static_cast<double>(step); }
  void log_steps(RunLog& log, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step)
      log.step({.step = step,
                .consumed_samples = 4 * step,
                .loss = loss_of(step),
                .gradient_norm = 2,
                .learning_rate = 1e-3 * static_cast<double>(step - 1),
                .next_learning_rate = 1e-3 * static_cast<double>(step),
                .seconds = step == first ? 5 : 0.5,
                .data_seconds = 0.125,
                .part_seconds = {{"data", 0.125}, {"forward", 0.25}}});
  }
  std::string file(const std::string& name) const { return read_file(folder_ / ("run/" + name)); }

  test::TemporaryFolder folder_;
  Recipe recipe_;
  Notes notes_;
};

TEST_F(RunLogTest, LinesAreMeansOverTheirWindowAsMegatrons) {
  {
    RunFolder run(folder_ / "run", RunFolder::Mode::kNew);
    RunLog log(run, recipe_, notes_);
    log.begin({}, "train", {.description = "test", .num_ranks = 2}, 1, {}, 1);
    log_steps(log, 1, 25);
    log.end(25, "done");
  }
  const auto records = report::find_megatron_records(file("log.txt"));
  ASSERT_EQ(records.size(), 4U);  // 1, 10, 20, and the last
  EXPECT_NEAR(records[0].loss.value(), 7.9, 1e-6);
  EXPECT_NEAR(records[1].loss.value(), 8 - 0.1 * 5.5, 1e-6);   // of 1 to 10
  EXPECT_NEAR(records[2].loss.value(), 8 - 0.1 * 15.5, 1e-6);  // of 11 to 20
  EXPECT_NEAR(records[3].loss.value(), 8 - 0.1 * 23, 1e-6);    // of 21 to 25
  EXPECT_EQ(records[0].milliseconds, 5000);
  EXPECT_EQ(records[1].milliseconds, 500);    // without the first step's
  EXPECT_EQ(records[1].learning_rate, 0.01);  // the next iteration's
  EXPECT_THAT(file("log.txt"), HasSubstr("lm loss: mean over the 10 iterations up to a line"));
  // Read back, log.txt and metrics.jsonl tell of the same losses.
  const report::RunRecord lines = report::read_run(folder_ / "run/log.txt");
  const report::RunRecord steps = report::read_run(folder_ / "run");
  EXPECT_EQ(steps.losses.size(), 25U);
  const auto windows =
      report::equal_windows(report::LossSums(steps.losses), report::LossSums(lines.losses));
  ASSERT_EQ(windows.size(), 4U);
  for (const report::EqualWindow& window : windows) EXPECT_NEAR(window.a, window.b, 2e-6);
  // 4 * 8 tokens in half a second, on two devices.
  EXPECT_EQ(steps.tokens_per_second.back().value, 32);
  EXPECT_EQ(steps.part_seconds.at("forward").back().value, 0.25);
  EXPECT_EQ(steps.learning_rate.back().value, lines.learning_rate[2].value + 0.004);
}

TEST_F(RunLogTest, AResumedProcessStartsWithALineOfItsFirstIteration) {
  {
    RunFolder run(folder_ / "run", RunFolder::Mode::kNew);
    RunLog log(run, recipe_, notes_);
    log_steps(log, 1, 13);
  }
  {
    std::filesystem::create_directories(folder_ / "run/checkpoints");
    RunFolder run(folder_ / "run", RunFolder::Mode::kResume);
    RunLog log(run, recipe_, notes_);
    log.resumed({.step = 12, .consumed_samples = 48, .checkpoint = "checkpoint", .meaning = {}});
    log_steps(log, 13, 20);
  }
  const report::RunRecord lines = report::read_run(folder_ / "run/log.txt");
  ASSERT_EQ(lines.losses.size(), 4U);  // 1, 10, 13, 20
  EXPECT_EQ(lines.losses[2].begin, 12);
  EXPECT_EQ(lines.losses[2].end, 13);
  EXPECT_EQ(lines.losses[3].begin, 12);
  EXPECT_NEAR(lines.losses[3].loss, 8 - 0.1 * 16.5, 1e-6);
}

TEST_F(RunLogTest, AFolderThatIsWrittenIsReadByOthersAndRefusedToASecondWriter) {
  RunFolder run(folder_ / "run", RunFolder::Mode::kNew);
  std::filesystem::create_directories(folder_ / "run/checkpoints");
  RunLog log(run, recipe_, notes_);
  log_steps(log, 1, 3);
  const std::string before = file("metrics.jsonl");
  try {
    const RunFolder second(folder_ / "run", RunFolder::Mode::kResume);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("run folder: expected no other process, got one that is writing here"));
  }
  EXPECT_EQ(file("metrics.jsonl"), before);
  EXPECT_EQ(report::read_run(folder_ / "run").losses.size(), 3U);
  log_steps(log, 4, 4);
  EXPECT_EQ(report::read_run(folder_ / "run").losses.size(), 4U);
}

TEST_F(RunLogTest, SpikesAndStepsLeftOutAreSaid) {
  recipe_.train.train_iters = 100;
  RunFolder run(folder_ / "run", RunFolder::Mode::kNew);
  RunLog log(run, recipe_, notes_);
  log_steps(log, 1, 40);
  log.step({.step = 41, .consumed_samples = 164, .loss = 12, .gradient_norm = 9, .seconds = 0.5});
  log.step({.step = 42,
            .consumed_samples = 168,
            .loss = std::nan(""),
            .gradient_norm = INFINITY,
            .seconds = 0.5,
            .skipped = true});
  ASSERT_EQ(notes_.warnings.size(), 2U);
  // The mean of steps 9 to 40.
  EXPECT_EQ(notes_.warnings[0],
            "step 41: loss 12.0000 is a spike, 5.5500 the mean of the 32 before");
  EXPECT_EQ(notes_.warnings[1], "step 42: loss nan, gradient norm inf: left out");
  EXPECT_THAT(file("log.txt"), HasSubstr(" iteration 41: loss 12.0000 is a spike"));
  EXPECT_THAT(file("log.txt"), HasSubstr(" iteration 42: loss nan, gradient norm inf: left out"));
  const report::RunRecord record = report::read_run(folder_ / "run");
  ASSERT_EQ(record.events.size(), 3U);
  EXPECT_EQ(record.events[0].step, 41);
  EXPECT_EQ(record.events[0].kind, report::RunEventKind::kSpike);
  EXPECT_EQ(record.events[1].step, 42);
  EXPECT_EQ(record.events[2].step, 42);
}

TEST_F(RunLogTest, ShareOfThePeakIsModelFlopsOverTheDevices) {
  {
    RunFolder run(folder_ / "run", RunFolder::Mode::kNew);
    RunLog log(run, recipe_, notes_);
    log.begin({}, "train \xff", {.description = "test", .peak_flops = 1e9, .num_ranks = 2}, 1, {},
              1);
    log_steps(log, 1, 2);
  }
  const double flops_per_token = count_flops_per_token(recipe_.model, 8);
  const report::RunRecord record = report::read_run(folder_ / "run");
  ASSERT_EQ(record.utilization.size(), 2U);
  EXPECT_NEAR(record.utilization[1].value, flops_per_token * 32 / 0.5 / 2 / 1e9, 1e-12);
  EXPECT_THAT(notes_.details[1], HasSubstr("64 tokens/s"));
}

}  // namespace
}  // namespace deltatrain::train
