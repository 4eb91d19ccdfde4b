#include "report/megatron_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace deltatrain::report {
namespace {

// The three forms of the line, as the format's description gives them.
const char* const kRaw =
    " [2026-01-31 12:00:01.500000] iteration      100/    4768 | consumed samples:       102400 | "
    "elapsed "
    "time per iteration (ms): 1450.4 | throughput per GPU (TFLOP/s/GPU): 633.7 | learning rate: "
    "1.000000E-04 "
    "| global batch size:  1024 | lm loss: 9.601000E+00 | loss scale: 1.0 | grad norm: 1.234 | num "
    "zeros: 0 | "
    "number of skipped iterations:   2 | number of nan iterations:   1 |\n";
const char* const kPrimus =
    "[20260131 12:00:01][rank-7/8][INFO] iteration      100/    4768 | consumed samples:       "
    "102400 | elapsed "
    "time per iteration (ms): 1460.8/1450.4 | hip mem usage: 0.51 | compute per GPU (TFLOP/s/GPU): "
    "633.7 (avg "
    "634.0) | tokens/s/GPU inst/harmonic mean: 180743.2/181000.0 | learning rate: 1.000000E-04 | "
    "global batch "
    "size:  1024 | lm loss: 9.601000E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped "
    "iterations:   0 "
    "| number of nan iterations:   0 |\n";
const char* const kTokens =
    "iteration      100/    4768 | consumed samples:       102400 | elapsed time per iteration "
    "(ms): 1450.4 | "
    "TFLOP/s/GPU: 633.7 | tokens per GPU (tokens/s/GPU): 180743.2 | learning rate: 1.000000E-04 | "
    "global batch "
    "size:  1024 | lm loss: 9.601000E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped "
    "iterations:   0 "
    "| number of nan iterations:   0 |\n";

TEST(MegatronLogTest, ReadsTheThreeForms) {
  const auto raw = find_megatron_records(kRaw);
  ASSERT_EQ(raw.size(), 1U);
  EXPECT_EQ(raw[0].form, RunFormat::kMegatron);
  EXPECT_EQ(raw[0].iteration, 100);
  EXPECT_EQ(raw[0].total_iterations, 4768);
  EXPECT_EQ(raw[0].milliseconds, 1450.4);
  EXPECT_EQ(raw[0].learning_rate, 1e-4);
  EXPECT_EQ(raw[0].global_batch_size, 1024);
  EXPECT_EQ(raw[0].loss, 9.601);
  EXPECT_EQ(raw[0].gradient_norm, 1.234);
  EXPECT_EQ(raw[0].skipped, 2);
  EXPECT_EQ(raw[0].nan, 1);
  EXPECT_EQ(raw[0].unix_seconds, 1769860801.5);  // date -u -d "2026-01-31 12:00:01" +%s
  EXPECT_EQ(raw[0].tokens_per_second, std::nullopt);

  const auto primus = find_megatron_records(kPrimus);
  ASSERT_EQ(primus.size(), 1U);
  EXPECT_EQ(primus[0].form, RunFormat::kMegatronPrimus);
  EXPECT_EQ(primus[0].milliseconds, 1460.8);  // of the interval, not the running mean
  EXPECT_EQ(primus[0].tokens_per_second, 180743.2);
  EXPECT_EQ(primus[0].loss, 9.601);

  const auto tokens = find_megatron_records(kTokens);
  ASSERT_EQ(tokens.size(), 1U);
  EXPECT_EQ(tokens[0].form, RunFormat::kMegatronTokens);
  EXPECT_EQ(tokens[0].tokens_per_second, 180743.2);
}

TEST(MegatronLogTest, ColourCodesAndLinesBrokenByATerminalAreAllRight) {
  std::string broken = "\x1b[32mINFO\x1b[0m ";
  const std::string line = kPrimus;
  for (size_t i = 0; i < line.size(); ++i) {
    broken += line[i];
    if (i % 80 == 79) broken += i % 160 == 79 ? "\n" : "\r\n";
    if (i % 97 == 0) broken += "\x1b[1m";
  }
  broken += "something else | lm loss: 1.0 |\n";
  const auto whole = find_megatron_records(line), parts = find_megatron_records(broken);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].iteration, whole[0].iteration);
  EXPECT_EQ(parts[0].loss, whole[0].loss);
  EXPECT_EQ(parts[0].tokens_per_second, whole[0].tokens_per_second);
  EXPECT_EQ(parts[0].gradient_norm, whole[0].gradient_norm);
}

std::string line(int64_t iteration, double loss, int skipped = 0) {
  char text[400];
  char loss_text[40] = "";
  if (loss > 0) std::snprintf(loss_text, sizeof loss_text, " lm loss: %.6E |", loss);
  std::snprintf(text, sizeof text,
                " [2026-01-31 12:%02d:%02d.000000] iteration %8lld/    4768 | consumed samples: "
                "%12lld | elapsed time "
                "per iteration (ms): 1000.0 | learning rate: 1.000000E-04 |%s grad norm: 1.000 | "
                "number of skipped "
                "iterations: %3d | number of nan iterations:   0 |\n",
                static_cast<int>(iteration / 60 % 60), static_cast<int>(iteration % 60),
                static_cast<long long>(iteration), static_cast<long long>(iteration * 8), loss_text,
                skipped);
  return text;
}

RunRecord run_of(const std::string& text) { return read_megatron_log("x.log", text, 1, 0).value(); }

TEST(MegatronLogTest, TheFirstLineIsOfOneIterationAndStaysInTheNextMean) {
  const RunRecord run = run_of(line(1, 12) + line(10, 8) + line(20, 6));
  ASSERT_EQ(run.losses.size(), 3U);
  EXPECT_EQ(run.losses[0].begin, 0);
  EXPECT_EQ(run.losses[0].end, 1);
  EXPECT_EQ(run.losses[1].begin, 0);
  EXPECT_EQ(run.losses[1].end, 10);
  EXPECT_EQ(run.losses[2].begin, 10);
  EXPECT_EQ(run.total_steps, 4768);
  EXPECT_EQ(run.wall_seconds, 20);  // 19 between the stamps, and the first step
}

TEST(MegatronLogTest, AResumedRunReplacesWhatItRepeats) {
  // Stopped after 37, resumed from a checkpoint at 25: 26 is a process's first line.
  const RunRecord run = run_of(line(1, 12) + line(10, 8) + line(20, 6) + line(30, 5) +
                               line(26, 5.5) + line(30, 5.25) + line(40, 4));
  ASSERT_EQ(run.losses.size(), 6U);
  EXPECT_EQ(run.losses[2].end, 20);
  EXPECT_EQ(run.losses[3].begin, 25);
  EXPECT_EQ(run.losses[3].end, 26);
  EXPECT_EQ(run.losses[4].begin, 25);
  EXPECT_EQ(run.losses[4].end, 30);
  EXPECT_EQ(run.losses[4].loss, 5.25);
  EXPECT_EQ(run.losses[5].begin, 30);
  ASSERT_FALSE(run.notes.empty());
  EXPECT_EQ(run.notes[0],
            "resumed 1 time, last before step 26: later lines of the same steps count");
}

TEST(MegatronLogTest, ALogWithoutItsBeginningStartsWithAWholeWindow) {
  const RunRecord run = run_of(line(200, 6) + line(300, 5) + line(400, 4));
  EXPECT_EQ(run.losses[0].begin, 100);
  EXPECT_EQ(run.losses[1].begin, 200);
}

TEST(MegatronLogTest, MissingLossesAndSkippedIterationsAreSeen) {
  const RunRecord run = run_of(line(10, 8) + line(20, 0, 3) + line(30, 6, 2));
  ASSERT_EQ(run.losses.size(), 3U);
  EXPECT_TRUE(std::isnan(run.losses[1].loss));
  EXPECT_EQ(run.losses[2].counted, 8);
  ASSERT_EQ(run.events.size(), 3U);
  EXPECT_EQ(run.events[0].kind, RunEventKind::kNonFinite);
  EXPECT_EQ(run.events[1].kind, RunEventKind::kSkipped);
  EXPECT_EQ(run.events[2].step, 30);
}

TEST(MegatronLogTest, FindsValidationLosses) {
  const Series losses = find_megatron_validation(
      " validation loss at iteration 100 | lm loss value: 9.500000E+00 | lm loss PPL: 1.3E+04 | \n"
      " validation loss at iteration 200 on validation set | lm loss value: 8.5E+00 | \n"
      " validation loss at iteration | lm loss value: 1 |\n");
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[0].step, 100);
  EXPECT_EQ(losses[0].value, 9.5);
  EXPECT_EQ(losses[1].value, 8.5);
}

TEST(MegatronLogTest, OtherTextsHaveNoLines) {
  for (const char* const text :
       {"", "iteration", "iteration 5", "iteration 5/", "iteration 5/6", "iteration -5/6 |",
        "iteration 99999999999999999999/6 | lm loss: 1 |", "epoch 1/3 | loss: 2 |"})
    EXPECT_TRUE(find_megatron_records(text).empty()) << text;
  const auto odd = find_megatron_records(
      "iteration 5/6 | global batch size: inf | number of skipped iterations: nan | number of nan "
      "iterations: -3 |");
  ASSERT_EQ(odd.size(), 1U);
  EXPECT_EQ(odd[0].skipped, 0);
  EXPECT_EQ(odd[0].nan, 0);
  EXPECT_GT(odd[0].global_batch_size, 0);
  const auto cut = find_megatron_records("iteration 5/6 | lm loss: 1.5 | grad nor");
  ASSERT_EQ(cut.size(), 1U);
  EXPECT_EQ(cut[0].loss, 1.5);
}

}  // namespace
}  // namespace deltatrain::report
