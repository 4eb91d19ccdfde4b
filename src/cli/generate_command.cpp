#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/model_folder.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/validators.h"
#include "model/weights.h"
#include "serve/engine.h"
#include "serve/text_stream.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace deltatrain::cli {

namespace {

struct GenerateOptions {
  std::string model, tokenizer, prompt, prompt_file;
  int64_t max_new_tokens = 100;
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 1;
  int64_t samples = 1;
  bool ignore_eos = false;
  bool no_bos = false;
  DeviceOptions device;
};

void check(const GenerateOptions& options) {
  const auto refuse = [](const char* name, const char* expected, const std::string& got) {
    throw ConfigError(error_text("", name, expected, got));
  };
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    refuse("--temperature", "a number >= 0", std::to_string(options.temperature));
  if (!(options.top_p > 0 && options.top_p <= 1))
    refuse("--top-p", "a number in (0, 1]", std::to_string(options.top_p));
}

// Samples made side by side, printed one after the other: the first as it comes.
class PrintedSamples final : public serve::Listener {
 public:
  PrintedSamples(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                 std::string prompt_text, int64_t num_samples)
      : prompt_text_(std::move(prompt_text)) {
    for (int64_t i = 0; i < num_samples; ++i)
      samples_.push_back({.stream = serve::TextStream(tokenizer, prompt, {})});
    print(prompt_text_);
  }

  void on_prompt(std::vector<serve::TokenLogprobs>) override {}
  bool on_token(int64_t sample, const serve::GeneratedToken& token) override {
    Sample& of = samples_[static_cast<size_t>(sample)];
    if (!token.is_stop) ++num_tokens_;
    give(of, of.stream.append(token.id, token.is_stop));
    return true;
  }
  void on_finish(int64_t sample, serve::FinishReason) override {
    Sample& of = samples_[static_cast<size_t>(sample)];
    give(of, of.stream.finish() + "\n");
    of.is_over = true;
    while (printed_ < samples_.size() && samples_[printed_].is_over) {
      if (++printed_ == samples_.size()) break;
      print("\n" + prompt_text_ + samples_[printed_].held);
    }
  }
  void on_error(const std::string& message) override { throw NumericError(message); }

  int64_t num_tokens() const { return num_tokens_; }

 private:
  struct Sample {
    serve::TextStream stream;
    std::string held;  // while another is being printed
    bool is_over = false;
  };

  void give(Sample& sample, const std::string& text) {
    if (&sample == &samples_[printed_]) {
      print(text);
    } else {
      sample.held += text;
    }
  }
  static void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  std::string prompt_text_;
  std::vector<Sample> samples_;
  size_t printed_ = 0;  // the sample that is being printed
  int64_t num_tokens_ = 0;
};

void run_generate(const GenerateOptions& options, Environment& environment) {
  check(options);
  const checkpoint::ModelFolder folder(options.model);
  const ModelConfig config = read_model_config(folder);
  const auto tokenizer = text::Tokenizer::load(
      options.tokenizer.empty() ? folder.folder() : std::filesystem::path(options.tokenizer));
  const std::string prompt_text =
      options.prompt_file.empty() ? options.prompt : read_file(options.prompt_file, 1 << 26);
  if (const size_t at = text::find_ill_formed_utf8(prompt_text); at != std::string::npos) {
    throw FormatError(
        error_text(options.prompt_file.empty() ? "--prompt" : options.prompt_file,
                   "byte " + std::to_string(at), "UTF-8",
                   "byte value " + std::to_string(static_cast<unsigned char>(prompt_text[at]))));
  }
  std::vector<int32_t> prompt = tokenizer.encode(
      prompt_text, options.no_bos ? text::AddSpecialTokens::kNo : text::AddSpecialTokens::kYes);
  if (prompt.empty()) {
    const auto start = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
    if (!start)
      throw ConfigError(error_text("", "--prompt",
                                   "text (the tokenizer has no BOS or EOS to start from)", "none"));
    prompt.push_back(*start);
  }
  for (const int32_t id : prompt) {
    if (id >= config.vocab_size) {
      throw ConfigError(
          error_text(options.model, "tokenizer",
                     "ids below the model's vocabulary size " + std::to_string(config.vocab_size),
                     std::to_string(id)));
    }
  }

  DeviceOptions device_options = options.device;
  device_options.gemm_uniform_rows = true;
  DeviceChoice device(device_options);
  const int64_t at_once = std::min<int64_t>(options.samples, 16);
  serve::Engine engine(device.context(), device.planning_context(), config,
                       {.num_streams = at_once,
                        .num_prompts = 1,
                        .max_length = std::max<int64_t>(
                            2, static_cast<int64_t>(prompt.size()) + options.max_new_tokens)});
  load_weights(engine.context(), config, folder, engine.parameters());

  int64_t total = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t done = 0; done < options.samples; done += at_once) {
    serve::Request request{.prompt = prompt,
                           .max_new_tokens = options.max_new_tokens,
                           .num_samples = std::min(at_once, options.samples - done),
                           .sampling = {options.temperature, options.top_k, options.top_p,
                                        options.seed + static_cast<uint64_t>(done)}};
    if (!options.ignore_eos && tokenizer.eos_id()) request.stop_ids = {*tokenizer.eos_id()};
    if (done > 0) std::printf("\n");
    const auto printed = std::make_shared<PrintedSamples>(tokenizer, prompt, prompt_text,
                                                          request.num_samples);
    engine.submit(std::move(request), printed);
    while (engine.step()) {
    }
    total += printed->num_tokens();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  char line[128];
  std::snprintf(line, sizeof line, "%lld tokens in %.2f s, %.1f tokens/s, state %.2f MiB",
                static_cast<long long>(total), seconds, static_cast<double>(total) / seconds,
                static_cast<double>(engine.bytes_per_stream()) / (1 << 20));
  environment.reporter.message("generate", line);
}

}  // namespace

void add_generate_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Text from a prompt");
  command->add_option("--model", options->model, "Checkpoint, run folder or Hugging Face folder")
      ->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "Folder or file; default: the model's folder");
  command->add_option("--prompt", options->prompt,
                      "Text to go on from; default: the start of a document");
  command->add_option("--prompt-file", options->prompt_file, "File with the prompt")
      ->excludes("--prompt");
  command->add_option("--max-new-tokens", options->max_new_tokens, "Tokens to add at most")
      ->check(whole_number(0, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-k", options->top_k, "Among the k most likely; 0: all")
      ->check(whole_number(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", options->top_p, "Among the most likely that reach this probability")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the sampling; sample i uses seed + i")
      ->check(whole_number(0))
      ->capture_default_str();
  command->add_option("--samples", options->samples, "Texts to make")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after the end-of-text token");
  command->add_flag("--no-bos", options->no_bos,
                    "Do not put the tokenizer's special tokens around the prompt");
  options->device.add_to(*command);
  command->footer(
      "Example: deltatrain generate --model runs/a --prompt 'The kernel' --temperature 0.8 --top-p "
      "0.95");
  command->callback([options, &environment] { run_generate(*options, environment); });
}

}  // namespace deltatrain::cli
