#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "convert/convert.h"

namespace deltatrain::cli {

namespace {

struct ConvertArguments {
  std::string from;
  std::string to;
  std::string format;
  std::string dtype;
  std::string tokenizer;
  bool round_trip = false;
  bool json = false;
};

void run_convert(const ConvertArguments& arguments, Environment& environment) {
  convert::TargetOptions options;
  options.to = arguments.to;
  options.format = arguments.format == "native" ? convert::TargetFormat::kNative
                                                : convert::TargetFormat::kHuggingFace;
  if (arguments.dtype == "bf16") options.dtype = DType::kBF16;
  if (arguments.dtype == "f32") options.dtype = DType::kF32;
  if (!arguments.tokenizer.empty()) options.tokenizer = arguments.tokenizer;
  options.round_trip = arguments.round_trip;
  const convert::ConvertReport report =
      convert::convert_model(arguments.from, options, environment.reporter);
  const std::string text = arguments.json ? convert::to_json(report) : convert::to_text(report);
  std::fputs(text.c_str(), stdout);
  if (!report.written) {
    std::fflush(stdout);
    throw CheckFailedError(fmt::format("{}: expected the tensors of config.json's model, got {}",
                                       arguments.from, report.differences.summary(3)));
  }
  environment.reporter.message("convert",
                               fmt::format("{} written to {}", report.source, arguments.to));
}

}  // namespace

void add_convert_command(CLI::App& app, Environment& environment) {
  const auto arguments =
      std::make_shared<ConvertArguments>();  // shared by the parser and the callback
  CLI::App* command =
      app.add_subcommand("convert", "Convert a model between checkpoints and Hugging Face folders");
  command->add_option("--from", arguments->from, "Run, checkpoint or Hugging Face folder")
      ->required();
  command->add_option("--to", arguments->to, "Folder to make; must be empty or not exist")
      ->required();
  command->add_option("--format", arguments->format, "Form of the result: native or hf")
      ->required()
      ->check(CLI::IsMember({"native", "hf"}));
  command
      ->add_option("--dtype", arguments->dtype,
                   "Element type of the result: bf16 or f32; default as stored")
      ->check(CLI::IsMember({"bf16", "f32"}));
  command->add_option("--tokenizer", arguments->tokenizer,
                      "Tokenizer to copy; default the one beside the weights");
  command->add_flag("--round-trip", arguments->round_trip,
                    "Read the result back and compare every bit");
  command->add_flag("--json", arguments->json, "Print the report as JSON");
  command->footer(
      "Exit code 4 when a tensor is missing, extra or mis-shaped; then nothing is written.\n"
      "Example: deltatrain convert --from runs/gdn --to models/gdn --format hf --dtype bf16 "
      "--round-trip");
  command->callback([arguments, &environment] { run_convert(*arguments, environment); });
}

}  // namespace deltatrain::cli
