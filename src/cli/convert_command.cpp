#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/target_format.h"
#include "config/hf_config.h"
#include "config/recipe_reader.h"
#include "convert/convert.h"

namespace deltatrain::cli {

namespace {

struct ConvertArguments {
  std::string from;
  std::string to;
  std::string format;
  std::string dtype;
  std::string tokenizer;
  std::string config;
  std::string spec = "no-te";
  std::string megatron_args = "none";
  bool round_trip = false;
  bool json = false;
};

// Of a config.json or a recipe.
ModelConfig read_config(const std::filesystem::path& path) {
  if (path.extension() == ".json")
    return model_config_from_hf(read_file(path, int64_t{16} << 20), path.string());
  return load_recipe(path, {}).recipe.model;
}

void run_convert(const ConvertArguments& arguments, Environment& environment) {
  convert::TargetOptions options;
  options.to = arguments.to;
  options.format = target_format(arguments.format);
  options.layer_spec = arguments.spec == "te" ? convert::LayerSpec::kTe : convert::LayerSpec::kNoTe;
  options.megatron_args = arguments.megatron_args == "namespace"
                              ? convert::MegatronArgsMode::kNamespace
                              : convert::MegatronArgsMode::kNone;
  if (arguments.dtype == "bf16") options.dtype = DType::kBF16;
  if (arguments.dtype == "f32") options.dtype = DType::kF32;
  if (!arguments.tokenizer.empty()) options.tokenizer = arguments.tokenizer;
  options.round_trip = arguments.round_trip;
  convert::OpenOptions open;
  if (!arguments.config.empty()) open.config = read_config(arguments.config);
  const convert::ConvertReport report =
      convert::convert_model(arguments.from, options, environment.reporter, open);
  const std::string text = arguments.json ? convert::to_json(report) : convert::to_text(report);
  std::fputs(text.c_str(), stdout);
  if (!report.written) {
    std::fflush(stdout);
    const std::string what = fmt::format("{}: expected the tensors of its model, got {}",
                                         arguments.from, report.differences.summary(3));
    if (report.differences.has_wrong_dtypes) throw FormatError(what);
    throw CheckFailedError(what);
  }
  environment.reporter.message("convert",
                               fmt::format("{} written to {}", report.source, arguments.to));
}

}  // namespace

void add_convert_command(CLI::App& app, Environment& environment) {
  const auto arguments =
      std::make_shared<ConvertArguments>();  // shared by the parser and the callback
  CLI::App* command =
      app.add_subcommand("convert",
                         "Convert a model between checkpoints of this program and of "
                         "Megatron, and Hugging Face folders");
  command
      ->add_option("--from", arguments->from,
                   "Run, checkpoint, Hugging Face folder, or Megatron checkpoint")
      ->required();
  command->add_option("--to", arguments->to, "Folder to make; must be empty or not exist")
      ->required();
  command->add_option("--format", arguments->format, "Form of the result: native, hf or megatron")
      ->required()
      ->check(CLI::IsMember({"native", "hf", "megatron"}));
  command
      ->add_option("--dtype", arguments->dtype,
                   "Element type of the weights: bf16 or f32; default as stored, and bf16 for a "
                   "Megatron checkpoint with f32 masters in its optimizer")
      ->check(CLI::IsMember({"bf16", "f32"}));
  command->add_option("--tokenizer", arguments->tokenizer,
                      "Tokenizer to copy; default the one beside the weights");
  command->add_option("--config", arguments->config,
                      "config.json or recipe of a Megatron checkpoint that doesn't say its model");
  command
      ->add_option("--spec", arguments->spec,
                   "Megatron's layers: no-te, or te for Transformer Engine's")
      ->check(CLI::IsMember({"no-te", "te"}))
      ->capture_default_str();
  command
      ->add_option(
          "--megatron-args", arguments->megatron_args,
          "none: torch.load takes the file with weights_only; namespace: with what Megatron "
          "needs to resume")
      ->check(CLI::IsMember({"none", "namespace"}))
      ->capture_default_str();
  command->add_flag("--round-trip", arguments->round_trip,
                    "Read the result back and compare every bit");
  command->add_flag("--json", arguments->json, "Print the report as JSON");
  command->footer(
      "Exit code 4 when a tensor is missing, extra or mis-shaped, 2 when one holds integers; then\n"
      "nothing is written. The optimizer's state goes along between native and Megatron checkpoints.\n"
      "Example: deltatrain convert --from runs/gdn --to models/gdn --format hf --dtype bf16 "
      "--round-trip");
  command->callback([arguments, &environment] { run_convert(*arguments, environment); });
}

}  // namespace deltatrain::cli
