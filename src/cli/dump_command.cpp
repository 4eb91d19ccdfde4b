#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "config/recipe_reader.h"
#include "data/loader.h"
#include "data/recipe_source.h"
#include "verify/dump.h"

namespace deltatrain::cli {

namespace {
struct DumpOptions {
  std::string model, input, out, recipe;
  std::vector<std::string> overrides;
  int64_t step = 0;
  bool gradients = false;
  DeviceOptions device;
};

// The global batch that step N of a recipe trains on, with its labels.
verify::TokenMatrix batch_of_step(const DumpOptions& options, const Recipe& recipe) {
  if (options.step < 1 || options.step > recipe.train.train_iters) {
    throw ConfigError(error_text(
        "", "--step", "1 to train.train_iters " + std::to_string(recipe.train.train_iters),
        std::to_string(options.step)));
  }
  data::BatchLoader loader(data::open_sample_source(data::training_source(recipe, 1)),
                           {.micro_batch_size = recipe.train.global_batch_size,
                            .global_batch_size = recipe.train.global_batch_size});
  loader.seek((options.step - 1) * recipe.train.global_batch_size);
  const data::MicroBatch& batch = loader.next_step().micro_batches.front();
  return {recipe.train.global_batch_size, recipe.train.seq_length, batch.input_ids_R,
          batch.labels_R, batch.sequence_offsets};
}

verify::TokenMatrix tokens_of(const DumpOptions& options, const std::optional<Recipe>& recipe) {
  if (recipe) return batch_of_step(options, *recipe);
  return verify::read_tokens(options.input, verify::model_vocab_size(options.model));
}

}  // namespace

void add_dump_command(CLI::App& app, Environment&) {
  const auto options = std::make_shared<DumpOptions>();
  CLI::App* command = app.add_subcommand(
      "dump", "Logits, loss, hidden states and gradients of a model for given tokens");
  command->add_option("--model", options->model, "Checkpoint, run folder or Hugging Face folder")
      ->required();
  command->add_option("--input", options->input,
                      "Token ids: .safetensors with input_ids, .npy or .json");
  command->add_option("--recipe", options->recipe,
                      "Instead of --input: the batch of a step of this recipe, whose residual stream is taken too");
  command->add_option("--step", options->step, "With --recipe: the step, 1 for the first");
  command->add_option("--set", options->overrides,
                      "section.key=value, over the recipe; may be given again");
  command->add_option("--out", options->out, "File to write, .safetensors")->required();
  command->add_flag("--gradients", options->gradients,
                    "Also the gradient of the mean loss for every parameter");
  options->device.add_to(*command);
  command->footer(
      "Example: deltatrain dump --model runs/a --input ids.json --out a.safetensors --gradients");
  command->callback([options] {
    if (options->input.empty() == options->recipe.empty()) {
      throw ConfigError(
          error_text("", "dump", "--input, or --recipe with --step", "both or neither"));
    }
    std::optional<Recipe> recipe;
    if (!options->recipe.empty()) recipe = load_recipe(options->recipe, options->overrides).recipe;
    DeviceChoice device(options->device);
    Context context = device.context(), planning_context = device.planning_context();
    if (recipe && recipe->train.fp32_residual_connection)
      context.residual_stream = planning_context.residual_stream = ResidualStream::kF32;
    verify::dump(context, planning_context, options->model, tokens_of(*options, recipe),
                 options->out,
                 options->gradients ? verify::DumpGradients::kYes : verify::DumpGradients::kNo);
  });
}

}  // namespace deltatrain::cli
