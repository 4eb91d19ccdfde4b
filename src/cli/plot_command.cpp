#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "report/loss_chart.h"

namespace deltatrain::cli {

namespace {
struct Options {
  std::vector<std::string> runs;
  std::string out;
};
}  // namespace

void add_plot_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plot", "The loss curves of runs as a picture");
  command->add_option("runs", options->runs, "Run folders or their metrics.jsonl")->required();
  command->add_option("--out", options->out, "Picture to write, .svg")->required();
  command->footer("Example: deltatrain plot runs/a runs/b --out loss.svg");
  command->callback([options, &environment] {
    if (std::filesystem::path(options->out).extension() != ".svg") {
      throw ConfigError(
          error_text("", "--out", "a name that ends in .svg", "\"" + options->out + "\""));
    }
    std::vector<report::RunMetrics> runs;
    for (const std::string& run : options->runs) {
      runs.push_back(report::read_run_metrics(run));
      if (runs.back().ignored_lines > 0) {
        environment.reporter.warning("plot", run + ": " +
                                                 std::to_string(runs.back().ignored_lines) +
                                                 " lines cut off or damaged, left out");
      }
    }
    write_file_atomically(options->out, report::loss_chart_svg(runs));
  });
}

}  // namespace deltatrain::cli
