#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/target_format.h"
#include "cli/validators.h"
#include "config/recipe_reader.h"
#include "convert/convert.h"
#include "convert/initial_weights.h"

namespace deltatrain::cli {

namespace {

struct InitArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string like = "fla";
  uint64_t seed = 42;
  std::string format = "hf";
  std::string spec = "no-te";
  std::string dtype = "f32";
  std::string out;
  bool json = false;
};

void run_init(const InitArguments& arguments, Environment& environment) {
  const ResolvedRecipe resolved = load_recipe(arguments.recipe, arguments.overrides);
  convert::TargetOptions target;
  target.to = arguments.out;
  target.format = target_format(arguments.format);
  target.layer_spec = arguments.spec == "te" ? convert::LayerSpec::kTe : convert::LayerSpec::kNoTe;
  target.dtype = arguments.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  if (!resolved.recipe.data.tokenizer.empty()) target.tokenizer = resolved.recipe.data.tokenizer;
  const auto like =
      arguments.like == "fla" ? convert::InitLike::kFla : convert::InitLike::kMegatron;
  const auto source = convert::make_initial_weights(resolved.recipe.model, like, arguments.seed);
  const convert::ConvertReport report = convert::write_model(*source, target, environment.reporter);
  const std::string text = arguments.json ? convert::to_json(report) : convert::to_text(report);
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_init_command(CLI::App& app, Environment& environment) {
  const auto arguments =
      std::make_shared<InitArguments>();  // shared by the parser and the callback
  CLI::App* command =
      app.add_subcommand("init", "Write the weights a reference trainer would start from");
  command->add_option("--recipe", arguments->recipe, "Recipe whose model is meant")->required();
  command->add_option("--set", arguments->overrides, "Override a recipe value, section.key=value");
  command
      ->add_option("--like", arguments->like,
                   "fla: FLA's values bit for bit; megatron: Megatron's in distribution")
      ->check(CLI::IsMember({"fla", "megatron"}))
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed, as torch.manual_seed takes it")
      ->check(whole_number(0))
      ->capture_default_str();
  command->add_option("--format", arguments->format, "native, hf or megatron")
      ->check(CLI::IsMember({"native", "hf", "megatron"}))
      ->capture_default_str();
  command->add_option("--spec", arguments->spec, "Megatron's layers: no-te or te")
      ->check(CLI::IsMember({"no-te", "te"}))
      ->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--out", arguments->out, "Folder to make; must be empty or not exist")
      ->required();
  command->add_flag("--json", arguments->json, "Print the report as JSON");
  command->footer(
      "Example: deltatrain init --recipe recipes/gdn/gdn_300m.yaml --like fla --seed 42 --out "
      "init/gdn");
  command->callback([arguments, &environment] { run_init(*arguments, environment); });
}

}  // namespace deltatrain::cli
