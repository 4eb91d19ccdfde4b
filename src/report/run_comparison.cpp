#include "report/run_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"

namespace deltatrain::report {

namespace {

double percent(double a, double b) { return 100 * (b - a) / a; }

std::map<int64_t, double> logged_losses(const RunRecord& run) {
  std::map<int64_t, double> losses;
  for (const LossWindow& window : run.losses) {
    if (std::isfinite(window.loss)) losses[window.end] = window.loss;
  }
  return losses;
}

// About a dozen of `steps`: the first, and then nearest to evenly spaced ones, closer together at
// the beginning, where losses fall fast.
std::set<int64_t> choose_rows(const std::vector<int64_t>& steps) {
  constexpr size_t kRows = 12;
  std::set<int64_t> chosen;
  if (steps.size() <= kRows) {
    chosen.insert(steps.begin(), steps.end());
    return chosen;
  }
  chosen.insert(steps.front());
  const auto last = static_cast<double>(steps.back());
  for (size_t i = 1; i < kRows; ++i) {
    const double share = static_cast<double>(i) / (kRows - 1);
    const auto wanted = static_cast<int64_t>(last * std::pow(share, 1.7));
    const auto at = std::lower_bound(steps.begin(), steps.end(), wanted);
    chosen.insert(at == steps.end() ? steps.back() : *at);
  }
  return chosen;
}

// The first step at which B is below A after it was above.
class Crossover {
 public:
  void add(int64_t step, double a, double b) {
    const double difference = percent(a, b);
    if (difference >= kEqualPercent) was_above_ = true;
    if (difference <= -kEqualPercent && was_above_ && !first_) first_ = step;
  }
  const std::optional<int64_t>& first() const { return first_; }

 private:
  bool was_above_ = false;
  std::optional<int64_t> first_;
};

std::string windows_text(const RunRecord& run) {
  const int64_t steps = window_steps(run);
  return steps <= 1 ? "of every step" : fmt::format("means over {} steps", steps);
}

void add_row_notes(PairComparison& pair) {
  bool told_warmup = false;
  for (ComparisonRow& row : pair.rows) {
    const auto raw = row.raw_percent();
    const double difference = row.equal ? row.equal->difference_percent() : raw.value_or(NAN);
    if (row.iteration == 1 && row.raw_a && row.raw_b) {
      if (std::abs(*row.raw_b - *row.raw_a) <= kBitPerfectLoss)
        row.notes.emplace_back("bit-perfect");
    } else if (std::abs(difference) <= kMatchedPercent) {
      row.notes.emplace_back("matched");
    } else if (std::abs(difference) <= kClosePercent) {
      row.notes.emplace_back("close");
    }
    if (!told_warmup && pair.warmup_steps > 0 && row.iteration > pair.warmup_steps) {
      told_warmup = true;
      row.notes.emplace_back("warm-up done");
    }
    if (pair.largest_gap && pair.largest_gap->end == row.iteration)
      row.notes.emplace_back("largest gap after warm-up");
    if (pair.first_crossover == row.iteration)
      row.notes.emplace_back(pair.first_crossover_raw == row.iteration
                                 ? "first crossover"
                                 : "first crossover of equal windows");
    else if (pair.first_crossover_raw == row.iteration)
      row.notes.emplace_back("first crossover of logged values");
  }
}

void add_range(PairComparison& pair, const LossSums& sums_a, const LossSums& sums_b,
               const ComparisonOptions& options) {
  const int64_t last = pair.windows.back().end;
  const int64_t first = pair.windows.front().begin + 1;
  const int64_t begin = options.range_begin.value_or(std::max(first, last - (last - first) / 5));
  const int64_t end = options.range_end.value_or(last);
  // Whole windows inside of it, so that both means are over the same steps.
  double a = 0, b = 0, steps = 0;
  for (const EqualWindow& window : pair.windows) {
    if (window.begin + 1 < begin || window.end > end) continue;
    const auto size = static_cast<double>(window.end - window.begin);
    a += sums_a.mean(window.begin, window.end).value_or(0) * size;
    b += sums_b.mean(window.begin, window.end).value_or(0) * size;
    steps += size;
    if (!pair.range_begin) pair.range_begin = window.begin + 1;
    pair.range_end = window.end;
  }
  if (steps > 0) {
    pair.mean_a = a / steps;
    pair.mean_b = b / steps;
  } else {
    pair.notes.push_back(
        fmt::format("no window that both runs have lies within steps {} to {}", begin, end));
  }
}

void add_window_notes(PairComparison& pair) {
  const int64_t a = window_steps(pair.a), b = window_steps(pair.b);
  pair.notes.push_back(
      fmt::format("A logged losses {}, B {}", windows_text(pair.a), windows_text(pair.b)));
  int64_t longest = 0;
  for (const EqualWindow& window : pair.windows)
    longest = std::max(longest, window.end - window.begin);
  if (a != b)
    pair.notes.push_back(fmt::format(
        "compared over windows of both, up to {} steps; the logged values beside them are over "
        "different steps",
        longest));
  if (a > 1 && b > 1)
    pair.notes.push_back(fmt::format(
        "only coarse losses: nothing is known of single steps, and differences are means over up "
        "to {} steps",
        longest));
}

}  // namespace

std::optional<double> ComparisonRow::raw_percent() const {
  if (!raw_a || !raw_b) return {};
  return percent(*raw_a, *raw_b);
}

std::optional<double> PairComparison::mean_percent() const {
  if (!mean_a || !mean_b) return {};
  return percent(*mean_a, *mean_b);
}

int64_t window_steps(const RunRecord& run) {
  int64_t steps = 0;
  for (size_t i = 0; i < run.losses.size(); ++i) {
    if (i == 0 && run.losses.size() > 1) continue;
    steps = std::max(steps, run.losses[i].end - run.losses[i].begin);
  }
  return steps;
}

RunSpeed speed_of(const RunRecord& run, int64_t steady_after) {
  RunSpeed speed;
  speed.wall_seconds = run.wall_seconds;
  // Each point is the mean since the one before it.
  const auto mean = [](const Series& series, int64_t after) -> std::optional<double> {
    double sum = 0, weight = 0;
    int64_t before = 0;
    for (const MetricPoint& point : series) {
      const auto steps = static_cast<double>(std::max<int64_t>(1, point.step - before));
      before = point.step;
      if (point.step <= after) continue;
      sum += steps * point.value;
      weight += steps;
    }
    if (!(weight > 0) || !std::isfinite(sum)) return {};
    return sum / weight;
  };
  // Rates: tokens over seconds, so the harmonic mean.
  const auto rate = [&](int64_t after) -> std::optional<double> {
    Series inverse;
    for (const MetricPoint& point : run.tokens_per_second) {
      if (point.value > 0) inverse.push_back({point.step, 1 / point.value});
    }
    const auto seconds = mean(inverse, after);
    if (!seconds || !(*seconds > 0)) return {};
    return 1 / *seconds;
  };
  if (const auto seconds = mean(run.step_seconds, 0)) speed.milliseconds = 1e3 * *seconds;
  if (const auto seconds = mean(run.step_seconds, steady_after))
    speed.steady_milliseconds = 1e3 * *seconds;
  speed.tokens_per_second = rate(steady_after);
  if (!speed.tokens_per_second) speed.tokens_per_second = rate(0);
  return speed;
}

PairComparison compare_runs(const RunRecord& a, const RunRecord& b,
                            const ComparisonOptions& options) {
  PairComparison pair{.a = a, .b = b};
  const std::map<int64_t, double> logged_a = logged_losses(a), logged_b = logged_losses(b);
  for (const auto* run : {&a, &b}) {
    if ((run == &a ? logged_a : logged_b).empty())
      throw ConfigError(error_text(run->source, "compare", "a run with at least one loss", "none"));
  }
  const LossSums sums_a(a.losses), sums_b(b.losses);
  pair.windows = equal_windows(sums_a, sums_b, options.min_window);
  if (pair.windows.empty())
    throw ConfigError(error_text(
        "compare", a.source + " and " + b.source, "windows of steps that both runs logged",
        fmt::format("{} up to step {}, and {} up to step {}", windows_text(a),
                    logged_a.rbegin()->first, windows_text(b), logged_b.rbegin()->first)));
  pair.warmup_steps = options.warmup_steps.value_or(
      std::max(a.warmup_steps.value_or(0), b.warmup_steps.value_or(0)));
  if (!options.warmup_steps && !a.warmup_steps && !b.warmup_steps)
    pair.notes.emplace_back("no log tells the learning rate: the warm-up is taken as 0 steps");

  Crossover raw, equal;
  std::vector<int64_t> candidates;
  for (const auto& [step, loss] : logged_a) {
    const auto other = logged_b.find(step);
    if (other == logged_b.end()) continue;
    raw.add(step, loss, other->second);
    candidates.push_back(step);
  }
  for (const EqualWindow& window : pair.windows) {
    equal.add(window.end, window.a, window.b);
    if (window.end > pair.warmup_steps && std::isfinite(window.difference_percent()) &&
        (!pair.largest_gap ||
         std::abs(window.difference_percent()) > std::abs(pair.largest_gap->difference_percent())))
      pair.largest_gap = window;
  }
  pair.first_crossover_raw = raw.first();
  pair.first_crossover = equal.first();

  std::set<int64_t> iterations(options.iterations.begin(), options.iterations.end());
  if (iterations.empty()) {
    if (candidates.empty()) {
      for (const EqualWindow& window : pair.windows) candidates.push_back(window.end);
    }
    iterations = choose_rows(candidates);
    for (const auto& step : {pair.first_crossover, pair.first_crossover_raw}) {
      if (step) iterations.insert(*step);
    }
    if (pair.largest_gap) iterations.insert(pair.largest_gap->end);
  }
  for (const int64_t iteration : iterations) {
    ComparisonRow row{.iteration = iteration};
    if (const auto at = logged_a.find(iteration); at != logged_a.end()) row.raw_a = at->second;
    if (const auto at = logged_b.find(iteration); at != logged_b.end()) row.raw_b = at->second;
    const auto window = std::find_if(pair.windows.begin(), pair.windows.end(),
                                     [&](const EqualWindow& w) { return w.end == iteration; });
    if (window != pair.windows.end()) row.equal = *window;
    if (row.raw_a || row.raw_b || row.equal) {
      pair.rows.push_back(row);
    } else {
      pair.notes.push_back(fmt::format("iteration {}: no run logged it", iteration));
    }
  }
  add_range(pair, sums_a, sums_b, options);
  add_window_notes(pair);
  add_row_notes(pair);
  return pair;
}

std::string past_limit(const PairComparison& pair, double max_percent, int64_t after) {
  int64_t compared = 0;
  for (const EqualWindow& window : pair.windows) {
    if (window.begin < after) continue;
    ++compared;
    if (!(std::abs(window.difference_percent()) <= max_percent))
      return fmt::format("{} and {}: steps {} to {}: expected at most {} % apart, got {:+.3f} %",
                         pair.a.name, pair.b.name, window.begin + 1, window.end, max_percent,
                         window.difference_percent());
  }
  if (compared == 0)
    return fmt::format("{} and {}: expected windows after step {}, got none", pair.a.name,
                       pair.b.name, after);
  return "";
}

}  // namespace deltatrain::report
