#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/run_inputs.h"
#include "report/chrome_trace.h"

namespace deltatrain::cli {

namespace {

struct PlotOptions {
  RunInputs inputs;
  std::vector<std::string> out;
};

bool is_trace(const std::string& name) { return name.ends_with(".trace.json"); }

void run_plot(const PlotOptions& options, Environment& environment) {
  std::vector<std::string> pictures;
  for (const std::string& name : options.out) {
    if (is_trace(name)) {
      write_file_atomically(name, report::merge_chrome_traces(
                                      report::find_chrome_traces(options.inputs.paths, name)));
      continue;
    }
    check_output_name(name, /*with_tables=*/false);
    pictures.push_back(name);
  }
  if (pictures.empty()) return;
  const std::vector<report::RunRecord> runs = options.inputs.read(environment);
  const report::ComparisonOptions comparison = options.inputs.comparison();
  std::vector<report::PairComparison> pairs;
  try {
    pairs = compare_all(runs, comparison);
  } catch (const ConfigError& error) {
    // Curves can be looked at although no step is in both.
    environment.reporter.warning("plot", error.what());
    pairs.clear();
  }
  for (const std::string& name : pictures) write_output(name, runs, pairs, comparison);
}

}  // namespace

void add_plot_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<PlotOptions>();
  CLI::App* command =
      app.add_subcommand("plot", "Curves of runs as pictures or as a page to look around in");
  command
      ->add_option(
          "runs", options->inputs.paths,
          "Run folders, metrics.jsonl, Megatron logs, trainer_state.json, trainer_log.jsonl "
          "or what Hugging Face's trainer printed")
      ->required();
  command
      ->add_option(
          "--out", options->out,
          "File to write, may be given again: .svg, .png, .html (interactive, in one file), "
          "or .trace.json: the Chrome traces of the folders given, such as OUT/profile, in one")
      ->required()
      ->allow_extra_args(false);
  options->inputs.add_to(*command);
  command->footer("Example: deltatrain plot runs/a runs/b --out loss.svg --out runs.html");
  command->callback([options, &environment] { run_plot(*options, environment); });
}

}  // namespace deltatrain::cli
