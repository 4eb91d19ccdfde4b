#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "eval/comparison.h"

namespace deltatrain::cli {

namespace {

struct Options {
  std::vector<std::string> files;
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

void run(const Options& options, const CLI::App& command) {
  const auto max_pp = limit(command, "--max-abs-pp", options.max_abs_pp);
  const auto max_sigma = limit(command, "--max-sigma", options.max_sigma);
  eval::Comparison comparison;
  std::string name_a, name_b;
  const eval::Json a = eval::read_results(options.files[0], &name_a);
  const eval::Json b = eval::read_results(options.files[1], &name_b);
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

}  // namespace

void add_compare_command(CLI::App& app, Environment&) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("compare", "Two results of eval or lm-evaluation-harness, task by task");
  command->add_option("results", options->files, "Two result files, or folders with results_*.json")
      ->required()
      ->expected(2);
  command->add_option("--max-abs-pp", options->max_abs_pp,
                      "Exit code 4 when an accuracy differs by more percentage points");
  command->add_option("--max-sigma", options->max_sigma,
                      "Exit code 4 when a score differs by more combined standard errors");
  command->add_flag("--allow-differences", options->allow_differences,
                    "Compare although versions, examples, documents, prompts or BOS differ");
  command->add_flag("--json", options->json, "JSON instead of the table");
  command->footer("Example: deltatrain compare results/a results/b --max-abs-pp 1.5");
  command->callback([options, command] { run(*options, *command); });
}

}  // namespace deltatrain::cli
