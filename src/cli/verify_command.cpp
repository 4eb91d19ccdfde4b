#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "config/hf_config.h"
#include "text/tokenizer.h"
#include "verify/model_check.h"

namespace deltatrain::cli {

namespace {

struct VerifyOptions {
  std::string model, against, tokenizer;
  double max_loss = 6;
  verify::AgreementLimits limits;
  int64_t row_length = 2048;
  bool json = false;
  DeviceOptions device;
};

using Json = nlohmann::ordered_json;

// Token ids of a random row, the same for every model with this vocabulary.
verify::Prompt random_row(int64_t vocab_size, int64_t length) {
  const RandomStream stream(1, "verify");
  verify::Prompt row;
  for (int64_t i = 0; i < length; ++i) {
    row.ids.push_back(static_cast<int32_t>(
        stream.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab_size))));
  }
  return row;
}

std::vector<verify::Prompt> text_prompts(const text::Tokenizer& tokenizer) {
  std::vector<verify::Prompt> prompts;
  for (const std::string& text : verify::standard_prompts()) {
    prompts.push_back({text, tokenizer.encode(text, text::AddSpecialTokens::kYes)});
  }
  return prompts;
}

Json report_prompt(const verify::PromptReport& report, const text::Tokenizer& tokenizer,
                   bool print) {
  std::vector<std::string> top5;
  for (const int32_t id : report.top5)
    top5.push_back(tokenizer.decode({{id}}, text::SkipSpecialTokens::kNo));
  const std::string greedy = tokenizer.decode(report.greedy, text::SkipSpecialTokens::kYes);
  if (print) {
    fmt::print(
        "  Prompt: \"{}\"\n  Loss: {:.4f} [{}]\n  Top-5: {}\n  Greedy continuation: \"{}\"\n\n",
        report.text, report.loss, report.passed ? "PASS" : "FAIL", Json(top5).dump(), greedy);
  }
  return {{"prompt", report.text},
          {"loss", report.loss},
          {"passed", report.passed},
          {"top5", top5},
          {"greedy", greedy}};
}

// Settings of two models that differ, but for those that no logit depends on: an epsilon of one
// model can be another's without a sign in the logits of a few rows.
std::string config_differences(const ModelConfig& model, const ModelConfig& other) {
  Json a = Json::parse(model_config_to_hf(model, DType::kF32)).flatten();
  Json b = Json::parse(model_config_to_hf(other, DType::kF32)).flatten();
  std::string found;
  for (const auto& [key, value] : a.items()) {
    if (key.ends_with("_token_id") || key == "/max_position_embeddings") continue;
    const Json expected = b.contains(key) ? b[key] : Json();
    if (value == expected) continue;
    found += (found.empty() ? "" : ", ") + key.substr(1) + " " + value.dump() + " against " +
             expected.dump();
  }
  return found;
}

void run_verify(const VerifyOptions& options, Environment& environment) {
  DeviceChoice device(options.device);
  const int64_t max_length = std::max<int64_t>(options.row_length, 256);
  verify::ModelRunner model(device.context(), device.planning_context(), options.model, max_length);
  const ModelConfig& config = model.config();
  verify::check_weights_finite(model, device.context());

  const std::filesystem::path tokenizer_path =
      options.tokenizer.empty() ? model.folder() : std::filesystem::path(options.tokenizer);
  std::optional<text::Tokenizer> tokenizer;
  if (!options.tokenizer.empty() || text::has_tokenizer(tokenizer_path)) {
    tokenizer = text::Tokenizer::load(tokenizer_path);
    if (tokenizer->vocab_size() > config.vocab_size) {
      throw ConfigError(error_text(tokenizer_path.string(), "vocabulary",
                                   "at most the model's " + std::to_string(config.vocab_size),
                                   std::to_string(tokenizer->vocab_size())));
    }
  } else if (options.against.empty()) {
    throw ConfigError(error_text(tokenizer_path.string(), "tokenizer",
                                 "one beside the model, or --tokenizer", "none"));
  }

  const bool print = !options.json;
  if (print)
    fmt::print(
        "{0:=<60}\nModel: {1}\n{2} layers, hidden {3}, {4} q/k and {5} value heads, vocabulary "
        "{6}, {7:.3f}B parameters\n{0:=<60}\n\n",
        "", model.folder().string(), config.num_hidden_layers, config.hidden_size, config.num_heads,
        config.num_v_heads, config.vocab_size,
        static_cast<double>(model.parameters().num_parameters()) * 1e-9);
  Json result{{"model", model.folder().string()},
              {"parameters", model.parameters().num_parameters()}};
  std::vector<verify::Prompt> rows;
  std::string failure;
  if (tokenizer) {
    rows = text_prompts(*tokenizer);
    const auto is_end = [&](int32_t id) { return tokenizer->eos_id() == id; };
    // Against another model only the comparison decides:
    // a small model may know nothing of the prompts.
    const double max_loss = options.against.empty() ? options.max_loss : 1e30;
    for (const verify::Prompt& prompt : rows) {
      const verify::PromptReport report = verify::check_prompt(model, prompt, is_end, max_loss);
      result["prompts"].push_back(report_prompt(report, *tokenizer, print));
      if (!report.passed && failure.empty()) {
        failure = error_text("\"" + report.text + "\"", "loss",
                             fmt::format("finite and below {:g}", max_loss),
                             fmt::format("{:.4f}", report.loss));
      }
    }
  }
  if (!options.against.empty()) {
    verify::ModelRunner other(device.context(), device.planning_context(), options.against,
                              max_length);
    if (const std::string differs = config_differences(config, other.config()); !differs.empty())
      environment.reporter.warning("verify", "config.json: " + differs);
    rows.push_back(random_row(config.vocab_size, options.row_length));
    const verify::Agreement agreement = verify::compare(model, other, rows, environment.reporter);
    const std::string difference = verify::disagreement(agreement, options.limits);
    if (failure.empty()) failure = difference;
    if (print) {
      fmt::print(
          "Against {}, {} positions of {} rows:\n  largest difference {:.3g}, relative {:.3g}, "
          "smallest cosine {:.8f}, same top-1 {:.2f} %, same top-5 {:.2f} % [{}]\n\n",
          other.folder().string(), agreement.positions, rows.size(), agreement.max_difference,
          agreement.relative_difference, agreement.min_cosine,
          100.0 * static_cast<double>(agreement.same_top1) /
              static_cast<double>(agreement.positions),
          100.0 * static_cast<double>(agreement.same_top5) /
              static_cast<double>(agreement.positions),
          difference.empty() ? "PASS" : "FAIL");
    }
    result["against"] = {{"model", other.folder().string()},
                         {"positions", agreement.positions},
                         {"max_difference", agreement.max_difference},
                         {"relative_difference", agreement.relative_difference},
                         {"min_cosine", agreement.min_cosine},
                         {"same_top1", agreement.same_top1},
                         {"same_top5", agreement.same_top5},
                         {"passed", difference.empty()}};
  }
  result["passed"] = failure.empty();
  if (options.json) fmt::print("{}\n", result.dump(2));
  if (print)
    fmt::print("RESULT: {}\n", failure.empty() ? "ALL CHECKS PASSED" : "SOME CHECKS FAILED");
  if (!failure.empty()) throw CheckFailedError("verify: " + failure);
}

}  // namespace

void add_verify_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand(
      "verify", "Check a model: finite weights and logits, prompts, and another model's logits");
  command
      ->add_option("model,--model", options->model, "Checkpoint, run folder or Hugging Face folder")
      ->required();
  command->add_option("--against", options->against,
                      "Another one that must give the same logits at every position");
  command->add_option("--tokenizer", options->tokenizer,
                      "Folder or file; default: the model's folder");
  command
      ->add_option("--max-loss", options->max_loss,
                   "Without --against: prompts must stay below this loss")
      ->capture_default_str();
  command
      ->add_option("--max-difference", options->limits.max_difference,
                   "Limit of |a - b| over all logits")
      ->capture_default_str();
  command
      ->add_option("--min-cosine", options->limits.min_cosine,
                   "Limit of the cosine at every position")
      ->capture_default_str();
  command
      ->add_option("--min-top1", options->limits.min_top1_share,
                   "Share of positions with the same top token")
      ->capture_default_str();
  command
      ->add_option("--min-top5", options->limits.min_top5_share,
                   "Share of positions with the same top five")
      ->capture_default_str();
  command
      ->add_option("--row-length", options->row_length,
                   "Tokens of the random row compared besides the prompts")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_flag("--json", options->json, "The result as JSON");
  options->device.add_to(*command);
  command->footer(
      "Exit code 4 when a check fails.\nExample: deltatrain verify runs/a-hf --against runs/a");
  command->callback([options, &environment] { run_verify(*options, environment); });
}

}  // namespace deltatrain::cli
