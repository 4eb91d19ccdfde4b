#include "cli/run_inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "cli/validators.h"
#include "report/comparison_text.h"
#include "report/page.h"
#include "report/run_charts.h"
#include "report/run_reader.h"

namespace deltatrain::cli {

namespace {

constexpr uint64_t kMostSteps = uint64_t{1} << 50;

std::string ending(const std::string& name) {
  return std::filesystem::path(name).extension().string();
}

// "3700-4700"
void parse_range(const std::string& text, report::ComparisonOptions& options) {
  const auto fail = [&] {
    throw ConfigError(
        error_text("", "--range", "FIRST-LAST, steps such as 3700-4700", "\"" + text + "\""));
  };
  int64_t first = 0, last = 0;
  const char* const end = text.data() + text.size();
  const auto [dash, error] = std::from_chars(text.data(), end, first);
  if (error != std::errc() || dash == end || *dash != '-') fail();
  const auto [stop, second_error] = std::from_chars(dash + 1, end, last);
  if (second_error != std::errc() || stop != end || first < 1 || last < first ||
      static_cast<uint64_t>(last) > kMostSteps)
    fail();
  options.range_begin = first;
  options.range_end = last;
}

}  // namespace

void RunInputs::add_to(CLI::App& command) {
  command
      .add_option("--divisor,--fla-divisor", divisors,
                  "Losses are divided by it, as the world size for logs of Hugging Face's trainer "
                  "that hold the sum over processes: one number for all inputs of that trainer, or "
                  "one for each input, in order")
      ->delimiter(',');
  command
      .add_option("--logging-steps", logging_steps,
                  "Steps per line of the trainer's console output, which does not name them")
      ->check(whole_number(1, 1U << 30))
      ->capture_default_str();
  command.add_option(
      "--tokens-per-step", tokens_per_step,
      "Tokens of a step on each device, for tokens/s of logs that tell only the time");
  command
      .add_option("--iters", iterations,
                  "Iterations of the table, separated by commas; default: about a dozen")
      ->delimiter(',')
      ->check(whole_number(0, kMostSteps));
  command.add_option("--range", range,
                     "FIRST-LAST: steps of the mean losses; default: the last fifth");
  command
      .add_option("--warmup", warmup,
                  "Steps left out of the largest gap; default: until the learning rate was largest")
      ->check(whole_number(0, kMostSteps));
  command.add_option("--window", window, "Least number of steps that losses are compared over")
      ->check(whole_number(1, kMostSteps))
      ->capture_default_str();
  command.add_option("--steady-after", steady_after, "Steps left out of the steady time per step")
      ->check(whole_number(0, kMostSteps))
      ->capture_default_str();
}

std::vector<report::RunRecord> RunInputs::read(Environment& environment) const {
  if (divisors.size() > 1 && divisors.size() != paths.size())
    throw ConfigError(error_text(
        "", "--divisor", fmt::format("one number, or one for each of {} inputs", paths.size()),
        fmt::format("{} numbers", divisors.size())));
  for (const double divisor : divisors) {
    if (!(std::isfinite(divisor) && divisor > 0))
      throw ConfigError(error_text("", "--divisor", "a number > 0", fmt::format("{}", divisor)));
  }
  if (!(std::isfinite(tokens_per_step) && tokens_per_step >= 0))
    throw ConfigError(
        error_text("", "--tokens-per-step", "a number >= 0", fmt::format("{}", tokens_per_step)));
  std::vector<report::RunRecord> runs;
  for (size_t i = 0; i < paths.size(); ++i) {
    report::RunReaderOptions options{.logging_steps = logging_steps,
                                     .tokens_per_step_and_device = tokens_per_step};
    if (divisors.size() == 1) options.trainer_divisor = divisors[0];
    if (divisors.size() > 1) options.divisor = divisors[i];
    runs.push_back(report::read_run(paths[i], options));
    if (runs.back().ignored_lines > 0)
      environment.reporter.warning(
          "runs", fmt::format("{}: {} lines cut off or damaged, left out", runs.back().source,
                              runs.back().ignored_lines));
  }
  // Runs of one name are told apart by their files.
  for (report::RunRecord& run : runs) {
    int same = 0;
    for (const report::RunRecord& other : runs) same += other.name == run.name ? 1 : 0;
    if (same < 2) continue;
    const std::string name = run.name;
    for (report::RunRecord& other : runs) {
      if (other.name == name) other.name = other.source;
    }
  }
  return runs;
}

report::ComparisonOptions RunInputs::comparison() const {
  report::ComparisonOptions options{
      .iterations = iterations, .min_window = window, .steady_after = steady_after};
  if (warmup >= 0) options.warmup_steps = warmup;
  if (!range.empty()) parse_range(range, options);
  return options;
}

std::vector<report::PairComparison> compare_all(const std::vector<report::RunRecord>& runs,
                                                const report::ComparisonOptions& options) {
  std::vector<report::PairComparison> pairs;
  for (size_t i = 1; i < runs.size(); ++i)
    pairs.push_back(report::compare_runs(runs[0], runs[i], options));
  return pairs;
}

void check_output_name(const std::string& name, bool with_tables) {
  const std::string found = ending(name);
  for (const char* const picture : {".svg", ".png", ".html"}) {
    if (found == picture) return;
  }
  for (const char* const table : {".md", ".csv", ".json"}) {
    if (with_tables && found == table) return;
  }
  throw ConfigError(error_text("", "--out",
                               with_tables
                                   ? "a name that ends in .md, .csv, .json, .svg, .png or .html"
                                   : "a name that ends in .svg, .png or .html",
                               "\"" + name + "\""));
}

void write_output(const std::string& name, const std::vector<report::RunRecord>& runs,
                  const std::vector<report::PairComparison>& pairs,
                  const report::ComparisonOptions& options) {
  const std::string kind = ending(name);
  std::string content;
  if (kind == ".md") {
    content = report::comparison_markdown(pairs, options);
  } else if (kind == ".csv") {
    content = report::comparison_csv(pairs);
  } else if (kind == ".json") {
    content = report::comparison_json(pairs, options);
  } else if (kind == ".html") {
    content = report::runs_page(runs, pairs, options,
                                runs.size() == 1 ? runs[0].name : "Comparison of runs");
  } else {
    content = report::draw_runs(
        runs, pairs, kind == ".png" ? report::PictureKind::kPng : report::PictureKind::kSvg);
  }
  write_file_atomically(name, content);
}

}  // namespace deltatrain::cli
