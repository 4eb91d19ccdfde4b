#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "bench/host_peak.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "config/recipe_reader.h"

namespace deltatrain::cli {

namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int samples = 9;
  bool json = false;
  bool decode_only = false;
  DeviceOptions device;
};

double milliseconds(double seconds) { return 1e3 * seconds; }

Json train_case(const DeviceChoice& device, const bench::TrainStepCase& step, int samples,
                double product_tflops) {
  const bench::TrainStepResult result =
      bench::time_train_step(device.context(), device.planning_context(), step, samples);
  Json ops = Json::array();
  for (const auto& [name, entry] : result.ops) {
    ops.push_back({{"op", name},
                   {"calls", entry.calls},
                   {"ms", milliseconds(entry.seconds)},
                   {"share", entry.seconds / result.profiled_seconds}});
  }
  return {{"case", step.name},
          {"ms", milliseconds(result.median_seconds)},
          {"spread", result.spread},
          {"tokens_per_second", result.tokens_per_second},
          {"model_tflops", result.model_tflops},
          {"share_of_product_rate", result.model_tflops / product_tflops},
          {"profiled_ms", milliseconds(result.profiled_seconds)},
          {"ops", ops}};
}

void print(const Json& result) {
  fmt::print("{}\n\n", result["device"].get<std::string>());
  fmt::print("| limit | measured |\n|---|---|\n");
  if (result.contains("fma_peak_tflops")) {
    fmt::print("| multiply-add loop, f32 | {:.3f} TFLOP/s |\n",
               result["fma_peak_tflops"].get<double>());
  }
  fmt::print("| copy, read + written | {:.1f} GB/s |\n", result["copy_gb_per_s"].get<double>());
  fmt::print("| product 2048 x 2048 x 2048 | {:.3f} TFLOP/s",
             result["product_tflops"].get<double>());
  if (result.contains("share_of_peak"))
    fmt::print(" ({:.0f} % of the loop)", 100 * result["share_of_peak"].get<double>());
  fmt::print(" |\n");
  for (const Json& step : result["train"]) {
    fmt::print(
        "\nTraining step, {}: {:.1f} ms (spread {:.0f} %), {:.0f} tokens/s, {:.3f} model TFLOP/s, "
        "{:.0f} % of the product rate\n\n",
        step["case"].get<std::string>(), step["ms"].get<double>(),
        100 * step["spread"].get<double>(), step["tokens_per_second"].get<double>(),
        step["model_tflops"].get<double>(), 100 * step["share_of_product_rate"].get<double>());
    fmt::print("| op | calls | ms | share of the step |\n|---|---|---|---|\n");
    for (const Json& op : step["ops"]) {
      fmt::print("| {} | {} | {:.2f} | {:.1f} % |\n", op["op"].get<std::string>(),
                 op["calls"].get<int64_t>(), op["ms"].get<double>(),
                 100 * op["share"].get<double>());
    }
  }
  fmt::print(
      "\n| decoding | sequences | tokens before | ms per step | spread | tokens/s | share of the "
      "copy rate | state |\n|---|---|---|---|---|---|---|---|\n");
  for (const Json& decode : result["decode"]) {
    fmt::print("| {} | {} | {} | {:.3f} | {:.0f} % | {:.0f} | {:.1f} % | {:.2f} MiB |\n",
               decode["case"].get<std::string>(), decode["sequences"].get<int64_t>(),
               decode["length"].get<int64_t>(), decode["ms_per_step"].get<double>(),
               100 * decode["spread"].get<double>(), decode["tokens_per_second"].get<double>(),
               100 * decode["share_of_copy_rate"].get<double>(),
               decode["state_bytes"].get<double>() / (1 << 20));
  }
}

void run_bench(const BenchOptions& options) {
  DeviceChoice device(options.device);
  const bool on_cpu = device.context().device->kind() == DeviceKind::kCpu;
  const int threads = omp_get_max_threads();
  Json result{{"device", device.context().device->description()}};
  if (on_cpu) {
    result["fma_peak_tflops"] = bench::measure_fma_peak_tflops(threads);
  }
  const double copy_gb_per_s = on_cpu
                                   ? bench::measure_copy_gb_per_s(threads)
                                   : bench::measure_device_copy_gb_per_s(*device.context().device);
  result["copy_gb_per_s"] = copy_gb_per_s;
  const bench::MatmulResult product =
      bench::time_matmul(device.context(), 2048, 2048, 2048, options.samples);
  result["product_tflops"] = product.tflops;
  if (on_cpu) result["share_of_peak"] = product.tflops / result["fma_peak_tflops"].get<double>();
  result["train"] = Json::array();
  result["decode"] = Json::array();
  std::vector<bench::TrainStepCase> cases = bench::reference_train_cases();
  if (!options.recipe.empty()) {
    const Recipe recipe = load_recipe(options.recipe, options.overrides).recipe;
    cases = {
        {options.recipe, recipe.model, recipe.train.micro_batch_size, recipe.train.seq_length}};
  }
  for (const bench::TrainStepCase& step : cases) {
    if (!options.decode_only)
      result["train"].push_back(train_case(device, step, options.samples, product.tflops));
    for (const int64_t num_sequences : {1, 16, 256}) {
      const std::vector<int64_t> lengths =
          num_sequences == 1 ? std::vector<int64_t>{16, 1024, 8192} : std::vector<int64_t>{16};
      for (const auto& decode : bench::time_decode(device.context(), device.planning_context(),
                                                   step.model, num_sequences, lengths)) {
        const double floor_seconds =
            static_cast<double>(decode.bytes_per_step) / (1e9 * copy_gb_per_s);
        result["decode"].push_back({{"case", step.name},
                                    {"sequences", decode.num_sequences},
                                    {"length", decode.length},
                                    {"ms_per_step", milliseconds(decode.seconds_per_step)},
                                    {"spread", decode.spread},
                                    {"tokens_per_second", decode.tokens_per_second},
                                    {"bytes_per_step", decode.bytes_per_step},
                                    {"share_of_copy_rate", floor_seconds / decode.seconds_per_step},
                                    {"state_bytes", decode.state_bytes}});
      }
    }
  }
  if (options.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    print(result);
  }
}

}  // namespace

void add_bench_command(CLI::App& app, Environment&) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Time products, training steps and decoding against the device's measured limits");
  command->add_option("--recipe", options->recipe,
                      "Time a step of this recipe's model and micro-batch instead");
  command->add_option("--set", options->overrides,
                      "section.key=value, over the recipe; may be given again");
  command->add_option("--samples", options->samples, "Timed runs of each case; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(3, 1000));
  command->add_flag("--decode-only", options->decode_only, "No training steps");
  command->add_flag("--json", options->json, "The result as JSON");
  options->device.add_to(*command);
  command->footer("Example: deltatrain bench");
  command->callback([options] { run_bench(*options); });
}

}  // namespace deltatrain::cli
