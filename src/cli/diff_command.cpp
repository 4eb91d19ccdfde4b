#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "convert/tensor_diff.h"

namespace deltatrain::cli {

namespace {

struct DiffOptions {
  std::string a;
  std::string b;
  double tolerance = 0;
  bool json = false;
};

}  // namespace

void add_diff_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<DiffOptions>();  // shared by the parser and the callback
  CLI::App* command =
      app.add_subcommand("diff", "Compare two sets of tensors: ||a - b|| / ||b|| for each");
  command->add_option("A", options->a, ".safetensors file, model folder or checkpoint")->required();
  command->add_option("B", options->b, "The reference to compare with")->required();
  command
      ->add_option("--tolerance", options->tolerance,
                   "Largest relative error of a tensor that passes")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print the report as JSON");
  command->footer(
      "Exit code 4 when a tensor is missing, extra, mis-shaped or past the tolerance.\n"
      "Example: deltatrain diff dump.safetensors expected.safetensors --tolerance 1e-5");
  command->callback([options, &environment] {
    if (!(options->tolerance >= 0)) {
      throw ConfigError(
          error_text("", "--tolerance", "a number >= 0", fmt::format("{}", options->tolerance)));
    }
    const convert::DiffReport report =
        convert::diff_tensors(options->a, options->b, options->tolerance, environment.reporter);
    const std::string text = options->json ? convert::to_json(report) : convert::to_text(report);
    std::fputs(text.c_str(), stdout);
    if (!report.passed()) {
      std::fflush(stdout);
      throw CheckFailedError(
          fmt::format("{}: expected the tensors of {} within {:g}, got differences", options->a,
                      options->b, options->tolerance));
    }
  });
}

}  // namespace deltatrain::cli
