#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/run_inputs.h"
#include "cli/validators.h"
#include "eval/comparison.h"
#include "report/comparison_text.h"
#include "report/run_reader.h"

namespace deltatrain::cli {

namespace {

struct CompareOptions {
  RunInputs inputs;  // their paths may be results of eval instead
  std::vector<std::string> out;
  double max_percent = -1;
  int64_t after = 0;
  double max_abs_pp = -1;
  double max_sigma = -1;
  bool allow_differences = false;
  bool json = false;
};

std::optional<double> limit(const CLI::App& command, const char* name, double value) {
  if (command.count(name) == 0) return {};
  if (!(value >= 0))
    throw ConfigError(error_text("", name, "a number >= 0", std::to_string(value)));
  return value;
}

void print_json(const eval::Comparison& comparison) {
  eval::Json rows = eval::Json::array();
  const auto optional = [](const std::optional<double>& value) {
    return value ? eval::Json(*value) : eval::Json(nullptr);
  };
  for (const eval::ComparedMetric& row : comparison.metrics) {
    rows.push_back({{"task", row.task},
                    {"metric", row.metric},
                    {"a", row.a},
                    {"b", row.b},
                    {"a_stderr", optional(row.a_stderr)},
                    {"b_stderr", optional(row.b_stderr)},
                    {"difference", row.difference()},
                    {"sigma", optional(row.sigma())},
                    {"chance", optional(row.chance)}});
  }
  const eval::Json result = {{"metrics", rows},
                             {"mean_absolute_pp", comparison.mean_absolute_pp},
                             {"only_a", comparison.only_a},
                             {"only_b", comparison.only_b},
                             {"differing_settings", comparison.differing}};
  std::printf("%s\n", result.dump(2).c_str());
}

// CompareOptions that say nothing of the other kind of input are mistakes.
void refuse_options(const CLI::App& command, std::initializer_list<const char*> names,
                    const char* expected) {
  for (const char* const name : names) {
    if (command.count(name) > 0) throw ConfigError(error_text("", name, expected, "others"));
  }
}

void compare_runs(const CompareOptions& options, const CLI::App& command,
                  Environment& environment) {
  refuse_options(command, {"--max-abs-pp", "--max-sigma", "--allow-differences"},
                 "results of evaluations");
  const auto max_percent = limit(command, "--max-percent", options.max_percent);
  for (const std::string& name : options.out) check_output_name(name, /*with_tables=*/true);
  const std::vector<report::RunRecord> runs = options.inputs.read(environment);
  const report::ComparisonOptions comparison = options.inputs.comparison();
  const std::vector<report::PairComparison> pairs = compare_all(runs, comparison);
  for (const std::string& name : options.out) write_output(name, runs, pairs, comparison);
  const std::string text = options.json ? report::comparison_json(pairs, comparison)
                                        : report::comparison_markdown(pairs, comparison);
  std::fputs(text.c_str(), stdout);
  if (!max_percent) return;
  for (const report::PairComparison& pair : pairs) {
    const std::string past = report::past_limit(pair, *max_percent, options.after);
    if (!past.empty()) throw CheckFailedError("compare: " + past);
  }
}

void compare_evaluations(const CompareOptions& options, const CLI::App& command) {
  refuse_options(
      command,
      {"--out", "--max-percent", "--after", "--divisor", "--logging-steps", "--tokens-per-step",
       "--iters", "--range", "--warmup", "--window", "--steady-after"},
      "logs of runs");
  const std::vector<std::string>& files = options.inputs.paths;
  if (files.size() != 2)
    throw ConfigError(error_text("", "results", "two", std::to_string(files.size())));
  const auto max_pp = limit(command, "--max-abs-pp", options.max_abs_pp);
  const auto max_sigma = limit(command, "--max-sigma", options.max_sigma);
  eval::Comparison comparison;
  std::string name_a, name_b;
  const eval::Json a = eval::read_results(files[0], &name_a);
  const eval::Json b = eval::read_results(files[1], &name_b);
  comparison = eval::compare_results(a, b);
  if (!comparison.differing.empty() && !options.allow_differences) {
    std::string more;
    if (comparison.differing.size() > 1)
      more = " (and " + std::to_string(comparison.differing.size() - 1) + " more)";
    throw ConfigError("compare: expected equal settings, got " + comparison.differing.front() +
                      more + "; --allow-differences compares nevertheless");
  }
  if (options.json) {
    print_json(comparison);
  } else {
    std::printf("A: %s\nB: %s\n\n%s", name_a.c_str(), name_b.c_str(),
                eval::comparison_table(comparison).c_str());
  }
  if (const std::string past = eval::past_limits(comparison, max_pp, max_sigma); !past.empty())
    throw CheckFailedError("compare: " + past);
}

// One command for both: what the first input is, all must be.
void run_compare(const CompareOptions& options, const CLI::App& command, Environment& environment) {
  std::string first_run, first_evaluation;
  for (const std::string& path : options.inputs.paths)
    (report::looks_like_run(path) ? first_run : first_evaluation) = path;
  if (!first_run.empty() && !first_evaluation.empty() && std::filesystem::exists(first_evaluation))
    throw ConfigError(error_text("", "compare", "inputs of one kind",
                                 first_run + " (a run) and " + first_evaluation +
                                     " (results of an evaluation, or neither)"));
  if (first_run.empty()) {
    compare_evaluations(options, command);
  } else {
    compare_runs(options, command, environment);
  }
}

}  // namespace

void add_compare_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand(
      "compare", "Runs over equal windows of steps, or two results of evaluations task by task");
  command
      ->add_option(
          "inputs", options->inputs.paths,
          "Two or more runs, each after the first against it: folders, metrics.jsonl, "
          "Megatron logs, trainer_state.json, trainer_log.jsonl, what Hugging Face's trainer "
          "printed. Or two results of eval or lm-evaluation-harness: files, or folders with "
          "results_*.json")
      ->required()
      ->expected(2, 64);
  command->add_flag("--json", options->json, "JSON instead of the table");
  command
      ->add_option(
          "--out", options->out,
          "Runs: file to write besides, may be given again: .md, .csv, .json, .svg, .png, .html")
      ->allow_extra_args(false);
  options->inputs.add_to(*command);
  command->add_option("--max-percent", options->max_percent,
                      "Runs: exit code 4 when losses over equal windows differ by more");
  command->add_option("--after", options->after, "Runs: --max-percent holds after this step")
      ->check(whole_number(0, uint64_t{1} << 50))
      ->capture_default_str();
  command->add_option(
      "--max-abs-pp", options->max_abs_pp,
      "Evaluations: exit code 4 when an accuracy differs by more percentage points");
  command->add_option(
      "--max-sigma", options->max_sigma,
      "Evaluations: exit code 4 when a score differs by more combined standard errors");
  command->add_flag(
      "--allow-differences", options->allow_differences,
      "Evaluations: compare although versions, examples, documents, prompts or BOS differ");
  command->footer(
      "Example: deltatrain compare fla/trainer_state.json megatron.log --divisor 8 --range "
      "3700-4700\n"
      "         deltatrain compare results/a results/b --max-abs-pp 1.5");
  command->callback(
      [options, command, &environment] { run_compare(*options, *command, environment); });
}

}  // namespace deltatrain::cli
