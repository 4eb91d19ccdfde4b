// The tables published for the 300M runs, out of logs in the formats they came in: the points are the published
// ones, lines between them, and the rest of the last thousand steps such that the published means hold.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/comparison_text.h"
#include "report/run_comparison.h"
#include "report/run_reader.h"
#include "support/test_files.h"

namespace deltatrain::report {
namespace {

struct Published {
  int64_t iteration;
  double fla, primus;
  const char* percent;  // of these two numbers, by hand
};

const std::vector<Published> kGdn = {
    {1, 11.9654, 11.9652, "0.00"}, {100, 7.471, 9.601, "+28.51"},
    {500, 4.625, 4.728, "+2.23"},  {1000, 4.001, 4.050, "+1.22"},
    {2000, 3.607, 3.614, "+0.19"}, {2100, 3.600, 3.592, "\u22120.22"},
    {3000, 3.448, 3.460, "+0.35"}, {4000, 3.396, 3.390, "\u22120.18"},
    {4500, 3.373, 3.373, "0.00"},  {4700, 3.351, 3.366, "+0.45"}};
const std::vector<Published> kKda = {
    {1, 11.9673, 11.9669, "0.00"},   {100, 7.7171, 9.6903, "+25.57"},
    {500, 4.7349, 4.8390, "+2.20"},  {1000, 4.0357, 4.0720, "+0.90"},
    {2000, 3.6009, 3.6141, "+0.37"}, {2600, 3.5056, 3.5047, "\u22120.03"},
    {3000, 3.4356, 3.4571, "+0.63"}, {3600, 3.4107, 3.4075, "\u22120.09"},
    {4000, 3.3831, 3.3861, "+0.09"}, {4500, 3.3603, 3.3694, "+0.27"},
    {4700, 3.3388, 3.3624, "+0.71"}};

// Losses at every `interval`-th step: published where there is a point, on the line between two elsewhere, and in
// 3701 to 4700 such that their mean is `mean`.
std::map<int64_t, double> losses(const std::vector<Published>& table, double Published::*side,
                                 int64_t interval, double mean) {
  std::map<int64_t, double> result;
  int64_t free = 0, points = 0;
  double fixed = 0;
  for (int64_t step = 1; step <= 4700;
       step = step == 1 && interval > 1 ? interval : step + interval) {
    size_t next = 0;
    while (table[next].iteration < step) ++next;
    if (table[next].iteration == step) {
      result[step] = table[next].*side;
      if (step > 3700) {
        fixed += table[next].*side;
        ++points;
      }
      continue;
    }
    if (step > 3700) ++free;
    const Published &a = table[next - 1], &b = table[next];
    const double share =
        static_cast<double>(step - a.iteration) / static_cast<double>(b.iteration - a.iteration);
    result[step] = a.*side + share * (b.*side - a.*side);
  }
  const double rest =
      (mean * static_cast<double>(free + points) - fixed) / static_cast<double>(free);
  for (auto& [step, loss] : result) {
    bool is_point = false;
    for (const Published& row : table) is_point |= row.iteration == step;
    if (step > 3700 && !is_point) loss = rest;
  }
  return result;
}

// A Megatron log every 100 iterations, as Primus rewrites it, that takes `wall_seconds` from its first step on.
std::string megatron_log(const std::map<int64_t, double>& curve, double milliseconds,
                         double tokens_per_second, double wall_seconds) {
  std::string text = "building GPT model ...\n";
  for (const auto& [iteration, loss] : curve) {
    const double second = milliseconds * 1e-3 + (wall_seconds - milliseconds * 1e-3) *
                                                    static_cast<double>(iteration - 1) / 4699;
    const auto whole = static_cast<int64_t>(second);
    text += fmt::format(
        " [2026-01-31 {:02}:{:02}:{:09.6f}] iteration {:8d}/{:8d} | consumed samples: {:12d} | "
        "elapsed time per "
        "iteration (ms): {:.1f}/{:.1f} | compute per GPU (TFLOP/s/GPU): 642.3 (avg 642.3) | "
        "tokens/s/GPU "
        "inst/harmonic mean: {:.1f}/{:.1f} | learning rate: {:.6E} | global batch size: {:5d} | lm "
        "loss: {:.6E} | "
        "loss scale: 1.0 | grad norm: 0.400 | number of skipped iterations:   0 | number of nan "
        "iterations:   0 |\n",
        whole / 3600, whole / 60 % 60, std::fmod(second, 60), iteration, 4768, iteration * 1024,
        milliseconds, milliseconds, tokens_per_second, tokens_per_second,
        iteration < 200 ? 1e-6 * static_cast<double>(iteration) : 2e-4, 1024, loss);
  }
  return text;
}

class ReferenceTablesTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  // Hugging Face's trainer on eight processes, with their sum as the loss.
  std::string trainer_state(const std::map<int64_t, double>& curve, double wall_seconds) const {
    nlohmann::json history = nlohmann::json::array();
    for (const auto& [step, loss] : curve)
      history.push_back(
          {{"step", step},
           {"loss", 8 * loss},
           {"learning_rate", 2e-4 * std::min<double>(1, static_cast<double>(step) / 200)}});
    history.push_back({{"step", 4700}, {"train_runtime", wall_seconds}, {"train_loss", 30.0}});
    return write("trainer_state.json",
                 nlohmann::json{{"log_history", history}, {"max_steps", 4768}}.dump());
  }
  std::string trainer_log(const std::map<int64_t, double>& curve, double wall_seconds) const {
    std::string text;
    for (const auto& [step, loss] : curve) {
      const auto elapsed =
          static_cast<int64_t>(std::llround(wall_seconds * static_cast<double>(step) / 4700));
      text += nlohmann::json{{"current_steps", step},
                             {"total_steps", 4768},
                             {"loss", 8 * loss},
                             {"learning_rate", 2e-4},
                             {"elapsed_time", fmt::format("{}:{:02}:{:02}", elapsed / 3600,
                                                          elapsed / 60 % 60, elapsed % 60)}}
                  .dump() +
              "\n";
    }
    return write("trainer_log.jsonl", text);
  }
  static PairComparison compare(const std::string& a, const std::string& b,
                                const std::vector<Published>& table) {
    const RunReaderOptions options{.trainer_divisor = 8, .tokens_per_step_and_device = 128 * 2048};
    ComparisonOptions comparison{.range_begin = 3700, .range_end = 4700};
    for (const Published& row : table) comparison.iterations.push_back(row.iteration);
    return compare_runs(read_run(a, options), read_run(b, options), comparison);
  }
  static void expect_table(const PairComparison& pair, const std::vector<Published>& table) {
    ASSERT_EQ(pair.rows.size(), table.size());
    const std::vector<std::vector<std::string>> rows = loss_table(pair).rows;
    for (size_t i = 0; i < table.size(); ++i) {
      EXPECT_EQ(pair.rows[i].iteration, table[i].iteration);
      EXPECT_NEAR(pair.rows[i].raw_a.value(), table[i].fla, 1e-6);
      EXPECT_NEAR(pair.rows[i].raw_b.value(), table[i].primus, 1e-6);
      EXPECT_EQ(rows[i][3], table[i].percent) << table[i].iteration;
    }
  }

  test::TemporaryFolder folder_;
};

TEST_F(ReferenceTablesTest, GatedDeltaNet) {
  // 1434.6 ms a step for 4700 steps; the published wall times are of 4768.
  const std::string fla = trainer_state(losses(kGdn, &Published::fla, 1, 3.3795), 1.4346 * 4700);
  const std::string primus =
      write("primus.log",
            megatron_log(losses(kGdn, &Published::primus, 100, 3.3829), 1431.6, 183213, 6832));
  const PairComparison pair = compare(fla, primus, kGdn);
  expect_table(pair, kGdn);
  EXPECT_EQ(pair.first_crossover_raw, 2100);
  EXPECT_EQ(pair.rows[0].notes, std::vector<std::string>{"bit-perfect"});
  EXPECT_EQ(pair.range_begin, 3701);
  EXPECT_EQ(pair.range_end, 4700);
  EXPECT_NEAR(pair.mean_a.value(), 3.3795, 1e-6);
  EXPECT_NEAR(pair.mean_b.value(), 3.3829, 1e-6);
  EXPECT_EQ(signed_percent(pair.mean_percent().value()), "+0.10");
  EXPECT_EQ(pair.warmup_steps, 200);
  const RunSpeed a = speed_of(pair.a, 200), b = speed_of(pair.b, 200);
  EXPECT_NEAR(a.milliseconds.value(), 1434.6, 1e-6);
  EXPECT_NEAR(a.tokens_per_second.value(), 182729, 1);
  EXPECT_NEAR(b.milliseconds.value(), 1431.6, 1e-6);
  EXPECT_NEAR(b.steady_milliseconds.value(), 1431.6, 1e-6);
  EXPECT_NEAR(b.tokens_per_second.value(), 183213, 1e-6);
  EXPECT_NEAR(b.wall_seconds.value(), 6832, 1e-3);
}

TEST_F(ReferenceTablesTest, KimiDeltaAttention) {
  const std::string fla = trainer_log(losses(kKda, &Published::fla, 1, 3.3681), 7119);
  const std::string primus =
      write("primus.log",
            megatron_log(losses(kKda, &Published::primus, 100, 3.3846), 1466.8, 178810, 6993));
  const PairComparison pair = compare(fla, primus, kKda);
  expect_table(pair, kKda);
  EXPECT_EQ(pair.first_crossover_raw, 2600);
  EXPECT_NEAR(pair.mean_a.value(), 3.3681, 1e-6);
  EXPECT_NEAR(pair.mean_b.value(), 3.3846, 1e-6);
  EXPECT_EQ(signed_percent(pair.mean_percent().value()), "+0.49");
  EXPECT_EQ(pair.a.wall_seconds, 7119);
  EXPECT_NEAR(pair.b.wall_seconds.value(), 6993, 1e-3);
  EXPECT_NEAR(speed_of(pair.b, 200).tokens_per_second.value(), 178810, 1e-6);
}

// One curve, logged by one side at every step and by the other as means over 100: the logged values differ as the
// published ones do at the start, the losses over equal windows not at all.
TEST_F(ReferenceTablesTest, OtherWindowsOfOneCurveAreNoDifference) {
  const auto loss = [](int64_t step) {
    return 3.3 + 8.6 * std::exp(-static_cast<double>(step) / 150);
  };
  std::map<int64_t, double> steps, means;
  double sum = 0;
  for (int64_t step = 1; step <= 4700; ++step) {
    steps[step] = loss(step);
    sum += loss(step);
    if (step == 1) means[step] = loss(step);
    if (step % 100 == 0) {
      means[step] = sum / 100;
      sum = 0;
    }
  }
  const PairComparison pair = compare(
      trainer_state(steps, 1), write("primus.log", megatron_log(means, 1000, 1, 4700)), kGdn);
  // A log has seven digits: at most 5e-7 of a mean, and 101/99 of that where a window is split.
  constexpr double kRounding = 100 * 5e-7 * 101 / 99;
  const double at_100 = 100 * (means[100] / loss(100) - 1);
  EXPECT_GT(at_100, 20);
  EXPECT_NEAR(pair.rows[1].raw_percent().value(), at_100, 1e-4);
  for (const ComparisonRow& row : pair.rows) {
    ASSERT_TRUE(row.equal.has_value()) << row.iteration;
    EXPECT_NEAR(row.equal->difference_percent(), 0, kRounding) << row.iteration;
  }
  EXPECT_EQ(pair.rows[1].equal->begin, 1);  // the first line splits its window
  EXPECT_NEAR(pair.mean_percent().value(), 0, kRounding);
  EXPECT_LT(std::abs(pair.largest_gap->difference_percent()), kRounding);
  EXPECT_EQ(pair.first_crossover, std::nullopt) << "rounding is no crossover";
  EXPECT_EQ(past_limit(pair, 0.001, 0), "");
  EXPECT_NE(
      std::find(
          pair.notes.begin(), pair.notes.end(),
          "compared over windows of both, up to 100 steps; the logged values beside them are over "
          "different steps"),
      pair.notes.end());
}

TEST_F(ReferenceTablesTest, CoarseLossesOfBothAreSaidToBeCoarse) {
  std::map<int64_t, double> curve;
  for (int64_t step = 100; step <= 1600; step += 100) curve[step] = 4;
  const std::string a = write("a.log", megatron_log(curve, 1000, 1, 1600));
  std::string printed;
  for (int i = 0; i < 50; ++i) printed += "{'loss': 32.0, 'learning_rate': 0.0002, 'epoch': 0.1}\n";
  const std::string b = write("b.log", printed);
  const RunReaderOptions options{.trainer_divisor = 8, .logging_steps = 32};
  const PairComparison pair = compare_runs(read_run(a, options), read_run(b, options), {});
  // Multiples of 100 and of 32.
  ASSERT_EQ(pair.windows.size(), 2U);
  EXPECT_EQ(pair.windows[1].begin, 800);
  EXPECT_EQ(pair.windows[1].end, 1600);
  EXPECT_NE(comparison_markdown(std::vector<PairComparison>{pair}, {}).find("only coarse losses"),
            std::string::npos);
}

}  // namespace
}  // namespace deltatrain::report
