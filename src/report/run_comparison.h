// Two runs side by side: losses over the same steps, and what came out of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/run.h"
#include "report/windows.h"

namespace deltatrain::report {

struct ComparisonOptions {
  std::vector<int64_t> iterations;                // rows of the table; empty: chosen
  std::optional<int64_t> range_begin, range_end;  // steps of the mean, both included; default: the
                                                  // last fifth of the common steps
  std::optional<int64_t> warmup_steps;  // default: until the learning rate was largest, of the run
                                        // that took longer
  int64_t min_window = 1;               // steps
  int64_t steady_after = 200;           // steps left out of the steady time per step
};

// Limits of the notes.
constexpr double kBitPerfectLoss = 5e-4;  // of |B - A| at iteration 1
constexpr double kEqualPercent = 0.001;   // less is no crossover: logs have seven digits
constexpr double kMatchedPercent = 0.5;
constexpr double kClosePercent = 1.0;

struct ComparisonRow {
  int64_t iteration = 0;
  // As logged at that iteration, each over its own window; none where a run has no such line.
  std::optional<double> raw_a, raw_b;
  std::optional<EqualWindow> equal;  // the window of both that ends there
  std::vector<std::string> notes;

  std::optional<double> raw_percent() const;  // 100 (b - a) / a
};

struct PairComparison {
  RunRecord a, b;  // b is compared with a
  std::vector<ComparisonRow> rows;
  std::vector<EqualWindow> windows;  // all that are compared
  int64_t warmup_steps = 0;
  std::optional<int64_t> range_begin, range_end;  // steps that the means are over
  std::optional<double> mean_a, mean_b;
  std::optional<EqualWindow> largest_gap;  // after the warm-up, by |percent|
  // The first iteration at which B is below A after it was above it: of logged values at the same
  // iteration, and of equal windows.
  std::optional<int64_t> first_crossover_raw, first_crossover;
  std::vector<std::string> notes;  // what the comparison rests on

  std::optional<double> mean_percent() const;
};

// What a run's log says of its speed; none where it does not.
struct RunSpeed {
  std::optional<double> milliseconds;         // per step, all
  std::optional<double> steady_milliseconds;  // per step, after ComparisonOptions::steady_after
  std::optional<double> tokens_per_second;    // per device, after them too
  std::optional<double> wall_seconds;
};
RunSpeed speed_of(const RunRecord& run, int64_t steady_after);

// Largest window of the run's log, in steps, its first line apart; 0 without losses.
int64_t window_steps(const RunRecord& run);

// ConfigError when one has no loss or no step is in both.
PairComparison compare_runs(const RunRecord& a, const RunRecord& b,
                            const ComparisonOptions& options);

// Empty, or says which window after step `after` differs by more than `max_percent`.
std::string past_limit(const PairComparison& pair, double max_percent, int64_t after);

}  // namespace deltatrain::report
