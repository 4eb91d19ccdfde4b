#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/dashboard.h"
#include "cli/device_options.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "config/recipe_reader.h"
#include "train/trainer.h"

namespace deltatrain::cli {

namespace {

struct Options {
  std::string recipe, out;
  std::vector<std::string> overrides;
  bool resume = false;
  bool profile = false;
  std::string sample_prompt, dashboard;
  DeviceOptions device;
};

std::string command_line(const Environment& environment) {
  std::string line;
  for (int i = 0; i < environment.argc; ++i) {
    if (i > 0) line += ' ';
    line += environment.argv[i];
  }
  return line;
}

// The product algorithms of a run lie beside its checkpoints and inside each. A run folder that
// lost the file gets the newest checkpoint's back, so that a resumed run gives the same bits.
void restore_algorithms(const std::filesystem::path& out, const std::filesystem::path& file) {
  if (std::filesystem::exists(file)) return;
  const checkpoint::CheckpointState state =
      checkpoint::CheckpointReader(checkpoint::find_checkpoint(out / "checkpoints")).state();
  const auto stored = state.extra.find("algorithms");
  if (stored != state.extra.end()) write_file_atomically(file, stored->second + "\n");
}

void run(const Options& options, Environment& environment) {
  const StopSignals stop_signals;
  const ResolvedRecipe resolved = load_recipe(options.recipe, options.overrides);
  for (const std::string& warning : resolved.warnings)
    environment.reporter.warning("recipe", warning);
  DeviceOptions device_options = options.device;
  if (device_options.precision.empty() && device_options.device != "reference") {
    const bool is_bf16 = resolved.recipe.train.precision == Precision::kBf16;
    const bool on_cpu = device_options.device == "cpu";
    if (is_bf16 && on_cpu)
      environment.reporter.warning("train", "train.precision bf16: the cpu computes in f32");
    device_options.precision = is_bf16 && !on_cpu ? "bf16" : "f32";
  }
  const std::filesystem::path out = options.out;
  std::string gemm_file = device_options.gemm_file;
  if (device_options.device == "cuda" && gemm_file.empty()) {
    gemm_file = (out / "gemm_algorithms.json").string();
    if (options.resume) restore_algorithms(out, gemm_file);
  }
  DeviceChoice device(device_options, gemm_file);
  std::unique_ptr<Dashboard> dashboard;
  std::string sample_prompt = options.sample_prompt;
  if (!options.dashboard.empty()) {
    dashboard = std::make_unique<Dashboard>(options.dashboard, out);
    environment.reporter.message("dashboard", dashboard->url());
    if (sample_prompt.empty() && !resolved.recipe.data.tokenizer.empty()) sample_prompt = "The";
  }
  const train::TrainOptions train_options{
      .out = options.out,
      .resume = options.resume,
      .command = command_line(environment),
      .stop_signal = [&stop_signals] { return stop_signals.take(); },
      .algorithms = [&gemm_file]() -> std::string {
        return !gemm_file.empty() && std::filesystem::exists(gemm_file) ? read_file(gemm_file)
                                                                        : "{}";
      },
      .profile = options.profile,
      .sample_prompt = sample_prompt};
  const train::TrainResult result = train::train(device.context(), device.planning_context(),
                                                 resolved, train_options, environment.reporter);
  std::printf("%lld steps", static_cast<long long>(result.steps));
  if (result.last_loss) std::printf(", last loss %.4f", *result.last_loss);
  if (result.skipped_steps > 0)
    std::printf(", %lld left out", static_cast<long long>(result.skipped_steps));
  if (result.validation_loss) std::printf(", validation loss %.4f", *result.validation_loss);
  std::printf("\n");
  if (result.stopped_by_signal != 0) environment.exit_code = 128 + result.stopped_by_signal;
}

}  // namespace

void add_train_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Train the model of a recipe");
  command->add_option("--recipe", options->recipe, "Recipe file; see recipes/ and docs/recipes.md")
      ->required();
  command->add_option("--set", options->overrides,
                      "section.key=value, over the recipe; may be given again");
  command->add_option("--out", options->out, "Folder of the run; new or empty unless --resume")
      ->required();
  command->add_flag("--resume", options->resume,
                    "Continue the run in --out from its last checkpoint");
  command->add_flag("--profile", options->profile,
                    "Time the third step by part and op: OUT/profile/step.md and "
                    "rank0.trace.json (chrome://tracing, Perfetto)");
  command
      ->add_option("--sample-prompt", options->sample_prompt,
                   "Text that the model goes on with at each validation step and at the end, written to "
                   "metrics.jsonl")
      ->check(well_formed_text());
  command->add_option("--dashboard", options->dashboard,
                      "PORT, or HOST:PORT: serve a page of the run while it goes on, with samples "
                      "of text behind --sample-prompt, else \"The\"; without HOST on this machine "
                      "alone; port 0: a free one");
  options->device.add_to(*command);
  command->footer(
      "SIGTERM and SIGINT save at the next step and end with exit code 128 + signal.\n"
      "Example: deltatrain train --recipe recipes/smoke/gdn.yaml --set data.train=tokens --out "
      "runs/a");
  command->callback([options, &environment] { run(*options, environment); });
}

}  // namespace deltatrain::cli
