#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/dashboard.h"
#include "cli/device_options.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "config/recipe_reader.h"
#include "dist/communicator.h"
#include "dist/rank_place.h"
#include "train/run_log.h"
#include "train/trainer.h"
#include "train/verdict.h"

namespace deltatrain::cli {

namespace {

struct TrainOptions {
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

constexpr const char* kNoAlgorithms = "{}";

// The product algorithms of a run lie beside its checkpoints and inside each. A run folder that
// lost the file gets the newest checkpoint's back, so that a resumed run gives the same bits.
void restore_algorithms(const std::filesystem::path& out, const std::filesystem::path& file) {
  if (std::filesystem::exists(file)) return;
  const checkpoint::CheckpointState state =
      checkpoint::CheckpointReader(checkpoint::find_checkpoint(out / "checkpoints")).state();
  const auto stored = state.extra.find("algorithms");
  // Products too small to time leave none, and so do other devices.
  if (stored == state.extra.end() || stored->second == kNoAlgorithms) return;
  write_file_atomically(file, stored->second + "\n");
}

// Cores that this process may use, divided among the ranks that may use the same.
int share_of_cores(dist::Communicator& ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;  // more than a cpu_set_t holds
  const std::string own(reinterpret_cast<const char*>(&cores), sizeof cores);
  const std::vector<std::string> all = ranks.all_gather("cores", own);
  int sharing = 0;
  for (int r = 0; r < ranks.size(); ++r) {
    if (ranks.host(r) == ranks.host(ranks.rank()) && all[static_cast<size_t>(r)] == own) ++sharing;
  }
  return std::max(1, CPU_COUNT(&cores) / sharing);
}

// Which device this rank takes, and how many threads of the host.
void share_host(dist::Communicator& ranks, DeviceOptions& options) {
  const DeviceKind kind = backend::parse_device_kind(options.device);
  if (kind != DeviceKind::kCuda) {
    const int share = share_of_cores(ranks);
    if (options.threads == 0) options.threads = share;
    return;
  }
  const int devices = backend::num_devices(kind);
  const int local = ranks.local_rank();
  if (devices > 1 && ranks.local_size() > devices) {
    throw DeviceError(error_text("ranks on host " + ranks.host(ranks.rank()), "devices",
                                 std::to_string(ranks.local_size()) + ", one each",
                                 std::to_string(devices)));
  }
  // A launcher may also show each rank a single device of its own.
  options.device_index = devices > 1 ? local % devices : 0;
}

void expect_own_devices(dist::Communicator& ranks, const backend::Backend& backend) {
  const std::vector<std::string> taken = ranks.all_gather("device", backend.device_identity());
  for (int b = 0; b < ranks.size(); ++b) {
    for (int a = 0; a < b; ++a) {
      const std::string& identity = taken[static_cast<size_t>(a)];
      if (identity.empty() || identity != taken[static_cast<size_t>(b)] ||
          ranks.host(a) != ranks.host(b))
        continue;
      throw DeviceError(error_text(
          "ranks " + std::to_string(a) + " and " + std::to_string(b) + " on host " + ranks.host(a),
          "devices", "one each", "both have " + identity));
    }
  }
}

train::TrainResult train_here(const TrainOptions& options, const Environment& environment,
                              const StopSignals& stop_signals, dist::Communicator* ranks,
                              std::atomic<int64_t>& steps_done, Reporter& reporter) {
  const ResolvedRecipe resolved = load_recipe(options.recipe, options.overrides);
  for (const std::string& warning : resolved.warnings) reporter.warning("recipe", warning);
  DeviceOptions device_options = options.device;
  if (device_options.precision.empty() && device_options.device != "reference") {
    const bool is_bf16 = resolved.recipe.train.precision == Precision::kBf16;
    const bool on_cpu = device_options.device == "cpu";
    if (is_bf16 && on_cpu)
      reporter.warning("train", "train.precision bf16: the cpu computes in f32");
    device_options.precision = is_bf16 && !on_cpu ? "bf16" : "f32";
  }
  const std::filesystem::path out = options.out;
  std::string gemm_file = device_options.gemm_file;
  if (device_options.device == "cuda" && gemm_file.empty()) {
    gemm_file = (out / "gemm_algorithms.json").string();
    if (options.resume && (ranks == nullptr || ranks->rank() == 0))
      restore_algorithms(out, gemm_file);
  }
  if (ranks != nullptr) share_host(*ranks, device_options);
  // One rank writes the file; the others hear from it.
  if (ranks != nullptr && ranks->rank() > 0) gemm_file = device_options.gemm_file = "";
  DeviceChoice device(device_options, gemm_file);
  if (ranks != nullptr) expect_own_devices(*ranks, device.backend());
  std::unique_ptr<Dashboard> dashboard;
  std::string sample_prompt = options.sample_prompt;
  if (!options.dashboard.empty() && (ranks == nullptr || ranks->rank() == 0)) {
    dashboard = std::make_unique<Dashboard>(options.dashboard, out);
    reporter.message("dashboard", dashboard->url());
    if (sample_prompt.empty() && !resolved.recipe.data.tokenizer.empty()) sample_prompt = "The";
  }
  train::TrainOptions train_options{
      .out = options.out,
      .resume = options.resume,
      .command = command_line(environment),
      .stop_signal = [&stop_signals] { return stop_signals.take(); },
      .algorithms = [&gemm_file]() -> std::string {
        return !gemm_file.empty() && std::filesystem::exists(gemm_file) ? read_file(gemm_file)
                                                                        : kNoAlgorithms;
      },
      .rehearse = device_options.device == "cuda" && device_options.gemm_search,
      .profile = options.profile,
      .sample_prompt = sample_prompt,
      .pci_bus_id = device.backend().device_identity(),
      .ranks = ranks,
      .collectives = {},
      .adopt_algorithms = {},
      .steps_done = &steps_done};
  if (ranks != nullptr) {
    train_options.collectives = [&] {
      return device.backend().make_collectives(*ranks, resolved.recipe.parallel.nvls);
    };
    if (device_options.device == "cuda") {
      train_options.adopt_algorithms = [&](const std::string& text) {
        if (text != "{}") device.backend().adopt_products(text);  // rank 0 chose none
      };
    }
  }
  return train::train(device.context(), device.planning_context(), resolved, train_options,
                      reporter);
}

// As train_here, for a rank among several: its end is told to the others and in OUT/ranks, and it
// ends within seconds when another is lost, whatever it waits for.
train::TrainResult train_as_rank(const TrainOptions& options, const Environment& environment,
                                 const StopSignals& stop_signals, const dist::RankPlace& place) {
  const std::string prefix = "rank " + std::to_string(place.rank) + ": ";
  std::unique_ptr<dist::Communicator> ranks;
  try {
    ranks = std::make_unique<dist::Communicator>(place, train::program_version());
  } catch (const Error& error) {
    throw Error(prefix + error.what(), error.code());
  }
  std::atomic<int64_t> steps_done = -1;
  // Not into the folder of a run that this one was refused.
  const auto may_record = [&] {
    return steps_done >= 0 || options.resume || train::holds_only_verdicts(options.out);
  };
  const auto record = [&](int code, const std::string& text) {
    if (may_record())
      train::record_verdict(options.out, ranks.get(), std::max<int64_t>(0, steps_done), code, text);
  };
  ranks->on_stuck([&](const dist::Loss& loss) {
    const int code = static_cast<int>(ExitCode::kPeerLost);
    const std::string text = loss.text() + " (and this rank did not end by itself)";
    record(code, text);
    std::fprintf(stderr, "deltatrain: %s%s\n", prefix.c_str(), text.c_str());
    std::_Exit(code);
  });
  const auto leave = [&](int code, const std::string& text) {
    record(code, text);
    ranks->leave(code, text);
  };
  try {
    Reporter& reporter = place.rank == 0 ? environment.reporter : silent_reporter();
    const train::TrainResult result =
        train_here(options, environment, stop_signals, ranks.get(), steps_done, reporter);
    ranks->leave(0, "");
    return result;
  } catch (const Error& error) {
    leave(static_cast<int>(error.code()), error.what());
    throw Error(prefix + error.what(), error.code());
  } catch (const std::exception& error) {
    leave(static_cast<int>(ExitCode::kInternal), error.what());
    throw;
  }
}

void run_train(const TrainOptions& options, Environment& environment) {
  const dist::RankPlace place =
      dist::find_rank_place([](const char* name) -> const char* { return std::getenv(name); });
  const StopSignals stop_signals(place.size > 1 ? StopSignals::Second::kOnlyNoted
                                                : StopSignals::Second::kEndsAtOnce);
  std::atomic<int64_t> steps_done = -1;
  const train::TrainResult result = place.size > 1
                                        ? train_as_rank(options, environment, stop_signals, place)
                                        : train_here(options, environment, stop_signals, nullptr,
                                                     steps_done, environment.reporter);
  if (result.stopped_by_signal != 0) environment.exit_code = 128 + result.stopped_by_signal;
  if (place.rank != 0) return;
  std::printf("%lld steps", static_cast<long long>(result.steps));
  if (result.last_loss) std::printf(", last loss %.4f", *result.last_loss);
  if (result.skipped_steps > 0)
    std::printf(", %lld left out", static_cast<long long>(result.skipped_steps));
  if (result.validation_loss) std::printf(", validation loss %.4f", *result.validation_loss);
  std::printf("\n");
}

}  // namespace

void add_train_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train the model of a recipe");
  command->add_option("--recipe", options->recipe, "Recipe file; see recipes/ and docs/recipes.md")
      ->required();
  command->add_option("--set", options->overrides,
                      "section.key=value, over the recipe; may be given again");
  command->add_option("--out", options->out, "Folder of the run; new or empty unless --resume")
      ->required();
  command->add_flag("--resume", options->resume,
                    "Continue the run in --out from its last checkpoint");
  command->add_flag(
      "--profile", options->profile,
      "Time the third step by part and op: OUT/profile/step.md and "
      "rank0.trace.json (chrome://tracing, Perfetto); OUT/profile.trace.json has all ranks");
  command
      ->add_option(
          "--sample-prompt", options->sample_prompt,
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
      "Several ranks: start it under mpirun or srun, or with RANK, WORLD_SIZE, LOCAL_RANK, "
      "MASTER_ADDR "
      "and MASTER_PORT set (docs/parallel.md); exit code 6: another rank was lost.\n"
      "Example: deltatrain train --recipe recipes/smoke/gdn.yaml --set data.train=tokens --out "
      "runs/a");
  command->callback([options, &environment] { run_train(*options, environment); });
}

}  // namespace deltatrain::cli
