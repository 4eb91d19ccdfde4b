#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "verify/dump.h"

namespace deltatrain::cli {

namespace {
struct Options {
  std::string model, input, out;
  bool gradients = false;
  DeviceOptions device;
};
}  // namespace

void add_dump_command(CLI::App& app, Environment&) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "dump", "Logits, loss, hidden states and gradients of a model for given tokens");
  command->add_option("--model", options->model, "Checkpoint, run folder or Hugging Face folder")
      ->required();
  command
      ->add_option("--input", options->input,
                   "Token ids: .safetensors with input_ids, .npy or .json")
      ->required();
  command->add_option("--out", options->out, "File to write, .safetensors")->required();
  command->add_flag("--gradients", options->gradients,
                    "Also the gradient of the mean loss for every parameter");
  options->device.add_to(*command);
  command->footer(
      "Example: deltatrain dump --model runs/a --input ids.json --out a.safetensors --gradients");
  command->callback([options] {
    DeviceChoice device(options->device);
    verify::dump(device.context(), device.planning_context(), options->model, options->input,
                 options->out,
                 options->gradients ? verify::DumpGradients::kYes : verify::DumpGradients::kNo);
  });
}

}  // namespace deltatrain::cli
