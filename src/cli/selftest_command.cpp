#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "verify/op_cases.h"

namespace deltatrain::cli {

namespace {

using Json = nlohmann::ordered_json;

struct SelftestOptions {
  verify::OpCaseFilter filter;
  bool full = false;
  bool sanitize = false;
  bool json = false;
  DeviceOptions device;
};

// The results of one op together.
struct Summary {
  int64_t tensors = 0;
  int64_t failed = 0;
  int64_t unsupported = 0;
  double worst_share = 0;  // largest error / bound
  std::string worst;
};

void run_selftest(SelftestOptions& options, Environment& environment) {
  const std::vector<std::string> names = verify::op_case_names();
  if (!options.filter.op.empty() &&
      std::find(names.begin(), names.end(), options.filter.op) == names.end()) {
    throw ConfigError(error_text("", "--op", "one of " + fmt::format("{}", fmt::join(names, ", ")),
                                 "\"" + options.filter.op + "\""));
  }
  options.filter.set = options.full ? verify::CaseSet::kFull : verify::CaseSet::kSmall;
  options.device.gemm_clear_outputs = options.sanitize;
  DeviceChoice tested(options.device);
  DeviceOptions reference_options;
  reference_options.device = "reference";
  DeviceChoice reference(reference_options);
  const auto with_arena = [](const DeviceChoice& choice, Arena& arena) {
    Context context = choice.context();
    context.arena = &arena;
    return context;
  };
  if (options.sanitize) options.filter.surroundings = verify::Surroundings::kExact;
  MemoryResource& memory = tested.context().device->memory();
  Arena tested_arena = options.sanitize ? Arena::of_separate_blocks(memory)
                                        : Arena(memory, verify::kOpCaseArenaBytes);
  Arena reference_arena(reference.context().device->memory(), verify::kOpCaseArenaBytes);
  const Context tested_context = with_arena(tested, tested_arena);
  const Context reference_context = with_arena(reference, reference_arena);

  std::map<std::string, Summary> summaries;
  std::vector<std::string> failures;
  int64_t done = 0;
  for (const std::string& name : names) {
    environment.reporter.progress("selftest", done++, static_cast<int64_t>(names.size()), "ops",
                                  name);
    if (!options.filter.op.empty() && name != options.filter.op) continue;
    verify::OpCaseFilter filter = options.filter;
    filter.op = name;
    for (const verify::OpCaseResult& result :
         verify::run_op_cases(tested_context, reference_context, filter)) {
      Summary& summary = summaries[result.op];
      ++summary.tensors;
      if (!result.supported) {
        ++summary.unsupported;
      } else if (!result.passed) {
        ++summary.failed;
        failures.push_back(verify::describe(result));
      }
      const double share = result.bound > 0 ? result.error / result.bound : 0;
      if (share > summary.worst_share) {
        summary.worst_share = share;
        summary.worst = result.case_name + ", " + result.tensor;
      }
    }
  }
  if (summaries.empty())
    throw ConfigError(error_text("", "--case", "a part of a case's name",
                                 "\"" + options.filter.case_name + "\""));

  Json json = Json::array();
  if (!options.json) {
    fmt::print(
        "{} in {}\n\n| op | tensors | failed | not supported | worst error / bound | in "
        "|\n|---|---|---|---|---|---|\n",
        tested.context().device->description(), dtype_name(tested.context().activation_dtype));
  }
  for (const auto& [op, summary] : summaries) {
    if (options.json) {
      json.push_back({{"op", op},
                      {"tensors", summary.tensors},
                      {"failed", summary.failed},
                      {"unsupported", summary.unsupported},
                      {"worst_error_over_bound", summary.worst_share},
                      {"worst", summary.worst}});
    } else {
      fmt::print("| {} | {} | {} | {} | {:.3f} | {} |\n", op, summary.tensors, summary.failed,
                 summary.unsupported, summary.worst_share, summary.worst);
    }
  }
  if (options.json) fmt::print("{}\n", json.dump(2));
  for (const std::string& failure : failures) fmt::print(stderr, "{}\n", failure);
  if (!failures.empty()) {
    throw CheckFailedError(error_text("selftest", "tensors beyond their bound", "none",
                                      std::to_string(failures.size())));
  }
  if (!options.json) fmt::print("\nall within their bounds\n");
}

}  // namespace

void add_selftest_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<SelftestOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "Every op of a device against the reference in double precision");
  command->add_option("--op", options->filter.op, "Only this op");
  command->add_option("--case", options->filter.case_name, "Only cases whose name contains this");
  command->add_flag("--full", options->full, "All sizes and head shapes, not only the quick ones");
  command
      ->add_flag(
          "--sanitize", options->sanitize,
          "Small shapes, larger ones where a kernel needs them, each tensor an allocation of "
          "its own, nothing poisoned, what the library's products overwrite cleared: for "
          "compute-sanitizer")
      ->excludes("--full");
  command->add_flag("--uniform-rows", options->device.gemm_uniform_rows,
                    "Products as `eval` and `serve` take them, each row by itself");
  command->add_flag("--json", options->json, "The table as JSON");
  options->device.add_to(*command);
  command->footer("Exit code 4 when a tensor is off.\nExample: deltatrain selftest --device cuda");
  command->callback([options, &environment] { run_selftest(*options, environment); });
}

}  // namespace deltatrain::cli
