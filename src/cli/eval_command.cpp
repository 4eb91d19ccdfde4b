#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/validators.h"
#include "eval/datasets.h"
#include "eval/results.h"
#include "model/weights.h"

namespace deltatrain::cli {

namespace {

struct EvalOptions {
  std::string model, tokenizer, data, out;
  std::vector<std::string> tasks;
  int64_t num_fewshot = 0;
  double limit = 0;
  std::string batch_size = "auto";
  int64_t max_length = 0;
  std::string add_bos = "auto";
  int race_version = 3;
  std::string scoring = "fp32";
  uint64_t seed = 1234;
  int64_t bootstrap_iters = 100000;
  bool log_samples = false;
  bool json = false;
  bool list = false;
  DeviceOptions device;
};

// Names apart by commas or blanks, in one argument or several.
std::vector<std::string> split_names(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (std::string argument : arguments) {
    std::replace(argument.begin(), argument.end(), ',', ' ');
    std::istringstream words(argument);
    for (std::string name; words >> name;) names.push_back(name);
  }
  return names;
}

void list_tasks(const EvalOptions& options) {
  std::printf("%-40s %-36s %-10s %9s  %s\n", "task", "data set", "split", "documents",
              options.data.empty() ? "" : "file");
  for (const eval::Task& task : eval::all_tasks()) {
    std::string files;
    if (!options.data.empty()) {
      const eval::SplitFiles split = eval::find_split(options.data, task, task.scored_split);
      files = split.found.empty() ? "missing: " + split.wanted + ".parquet or .jsonl"
                                  : split.found.front().string();
    }
    const std::string dataset = task.dataset + (task.config.empty() ? "" : ", " + task.config);
    const std::string count = task.num_documents > 0 ? std::to_string(task.num_documents) : "any";
    std::printf("%-40s %-36s %-10s %9s  %s\n", task.name.c_str(), dataset.c_str(),
                task.scored_split.c_str(), count.c_str(), files.c_str());
  }
  for (const eval::Group& group : eval::all_groups())
    std::printf("%-40s group\n", group.name.c_str());
  std::printf("%-40s arc_easy and arc_challenge\n", "ai2_arc");
}

int64_t batch_size_of(const EvalOptions& options) {
  if (options.batch_size == "auto") return 0;
  char* end = nullptr;
  const long long value = std::strtoll(options.batch_size.c_str(), &end, 10);
  if (options.batch_size.empty() || *end != '\0' || value < 1 || value > 1 << 20)
    throw ConfigError(error_text("", "--batch-size", "auto or a whole number from 1 to 1048576",
                                 options.batch_size));
  return value;
}

void describe_tokens(const text::Tokenizer& tokenizer, eval::RunDescription& run) {
  const auto set = [&](std::optional<int32_t> id, int32_t& to, std::string& text) {
    if (!id) return;
    to = *id;
    text = tokenizer.token_text(*id);
  };
  set(tokenizer.eos_id(), run.eos_id, run.eos_text);
  set(tokenizer.bos_id(), run.bos_id, run.bos_text);
  set(tokenizer.pad_id(), run.pad_id, run.pad_text);
}

void run_eval(const EvalOptions& options, Environment& environment) {
  if (options.list) return list_tasks(options);
  for (const auto& [name, value] :
       {std::pair{"--model", &options.model}, std::pair{"--data", &options.data}}) {
    if (value->empty()) throw ConfigError(std::string(name) + ": expected a folder, got nothing");
  }
  const std::vector<std::string> names = split_names(options.tasks);
  if (names.empty())
    throw ConfigError("--tasks: expected names of tasks (eval --list shows all), got none");
  if (options.log_samples && options.out.empty())
    throw ConfigError("--log-samples: expected --out beside it, got none");
  const auto began = std::chrono::steady_clock::now();
  const auto start = static_cast<double>(std::time(nullptr));

  eval::EvaluationOptions what;
  what.tasks = eval::find_tasks(names);
  for (const eval::Group& group : eval::all_groups()) {
    if (std::find(names.begin(), names.end(), group.name) != names.end())
      what.groups.push_back(group.name);
  }
  what.data = options.data;
  what.num_fewshot = options.num_fewshot;
  what.fewshot_seed = options.seed;
  if (options.limit != 0) {
    if (!(options.limit > 0) || options.limit > 1e9)
      throw ConfigError(error_text("", "--limit", "a share below 1 or a number of documents",
                                   std::to_string(options.limit)));
    what.limit = options.limit;
  }
  what.race_version = options.race_version;
  what.bootstrap_iters = options.bootstrap_iters;
  what.special_tokens =
      options.add_bos == "false" ? text::AddSpecialTokens::kNo : text::AddSpecialTokens::kYes;

  const checkpoint::ModelFolder folder(options.model);
  const ModelConfig config = read_model_config(folder);
  what.max_length = options.max_length > 0 ? options.max_length : config.max_position_embeddings;
  const std::filesystem::path tokenizer_path =
      options.tokenizer.empty() ? folder.folder() : std::filesystem::path(options.tokenizer);
  if (options.tokenizer.empty() && !text::has_tokenizer(tokenizer_path))
    throw ConfigError(error_text(tokenizer_path.string(), "tokenizer",
                                 "a tokenizer.json or tokenizer.model, or --tokenizer", "none"));
  const auto tokenizer = text::Tokenizer::load(tokenizer_path);
  if (options.add_bos == "true" && !tokenizer.bos_id())
    throw ConfigError(error_text(tokenizer_path.string(), "--add-bos true",
                                 "a tokenizer with a BOS token", "none"));

  eval::Evaluation evaluation(what, tokenizer, environment.reporter);
  int64_t truncated = 0;
  for (const eval::TaskRun& task : evaluation.tasks()) {
    truncated += task.truncated_requests;
    if (task.task.num_documents > 0 && task.num_original != task.task.num_documents)
      environment.reporter.warning(
          "eval", task.task.name + ": " + std::to_string(task.num_original) +
                      " documents, published are " + std::to_string(task.task.num_documents));
  }
  if (truncated > 0)
    environment.reporter.warning("eval", std::to_string(truncated) + " requests are longer than " +
                                             std::to_string(what.max_length) +
                                             " tokens and lose the front of their context");

  DeviceOptions device_options = options.device;
  device_options.gemm_uniform_rows = true;
  DeviceChoice device(device_options);
  eval::RunDescription description;
  description.version = DELTATRAIN_VERSION;
  description.model = options.model;
  description.device = options.device.device;
  description.dtype = dtype_name(device.context().activation_dtype);
  description.batch_size = options.batch_size;
  description.scoring =
      options.scoring == "bf16" ? eval::ScorePrecision::kBF16 : eval::ScorePrecision::kF32;
  description.add_bos = options.add_bos;
  description.special_tokens_rule =
      what.special_tokens == text::AddSpecialTokens::kNo ? "none" : tokenizer.special_tokens_rule();
  description.start_unix_seconds = start;
  describe_tokens(tokenizer, description);

  eval::Scorer scorer(device.context(), device.planning_context(), config,
                      {batch_size_of(options), what.max_length, description.scoring});
  load_weights(scorer.context(), config, folder, scorer.parameters());
  environment.reporter.message("eval",
                               std::to_string(evaluation.requests().size()) +
                                   " requests, special tokens: " + description.special_tokens_rule);
  evaluation.finish(scorer.score(evaluation.requests(), environment.reporter));

  for (const auto& info : scorer.parameters().infos())
    description.num_parameters += info.num_elements();
  description.chosen_batch_size = scorer.batch_size();
  description.work = scorer.work();
  description.total_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const eval::Json results = eval::results_json(evaluation, description);
  if (!options.out.empty()) {
    const std::string stamp = eval::file_stamp();
    const eval::ResultFiles files = eval::result_files(options.out, options.model, stamp);
    if (options.log_samples) eval::write_samples(files, evaluation, stamp);
    eval::write_results(files, results);
    environment.reporter.message("eval", "wrote " + files.results.string());
  }
  std::printf(
      "%s", options.json ? (results.dump(2) + "\n").c_str() : eval::results_table(results).c_str());
}

}  // namespace

void add_eval_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand(
      "eval",
      "Scores on downstream tasks, equal to lm-evaluation-harness 0.4.13, from local files");
  command->add_option("--model", options->model, "Checkpoint, run folder or Hugging Face folder");
  command->add_option("--tokenizer", options->tokenizer,
                      "Folder or file; default: the model's folder");
  command->add_option("--tasks,-t", options->tasks,
                      "Names, groups or patterns, apart by commas: arc_easy, arc_challenge, "
                      "hellaswag, openbookqa, piqa, "
                      "winogrande, mmlu, race, lambada_openai, wikitext, cloze");
  command->add_option("--data", options->data, "Folder with the data sets (docs/evaluation.md)");
  command->add_option("--out,--output-path,--output_path,-o", options->out,
                      "Folder for results_*.json; or a name ending in .json");
  command->add_flag("--log-samples,--log_samples,-s", options->log_samples,
                    "Also samples_TASK_*.jsonl: every prompt and score");
  command
      ->add_option("--num-fewshot,--num_fewshot,-f", options->num_fewshot,
                   "Examples before each question")
      ->check(whole_number(0, 1000))
      ->capture_default_str();
  command
      ->add_option("--limit,-L", options->limit,
                   "First documents of each task: a number, or a share below 1; 0: all")
      ->capture_default_str();
  command
      ->add_option("--batch-size,--batch_size,-b", options->batch_size,
                   "Sequences at a time; moves no score")
      ->capture_default_str();
  command
      ->add_option(
          "--max-length,--max_length", options->max_length,
          "Tokens that the model sees at most; default: config.json's max_position_embeddings")
      ->check(whole_number(2, 1 << 24));
  command
      ->add_option("--add-bos,--add_bos", options->add_bos,
                   "The tokenizer's special tokens before contexts: auto (as the tokenizer says), "
                   "true or false")
      ->check(CLI::IsMember({"auto", "true", "false"}))
      ->capture_default_str();
  command
      ->add_option("--race-version,--race_version", options->race_version,
                   "3: race since harness 0.4.12; 2: before")
      ->check(CLI::IsMember({2, 3}))
      ->capture_default_str();
  command
      ->add_option("--scoring", options->scoring,
                   "fp32, or bf16: scores rounded as a bf16 run of the harness")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the few-shot examples")
      ->check(whole_number(0))
      ->capture_default_str();
  command
      ->add_option("--bootstrap-iters,--bootstrap_iters", options->bootstrap_iters,
                   "Resamples for the standard error of perplexities; 0: no standard errors")
      ->check(whole_number(0, 10000000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "The result file on stdout instead of the table");
  command->add_flag("--list", options->list, "Show the tasks and, with --data, their files");
  options->device.add_to(*command);
  command->footer(
      "Example: deltatrain eval --model runs/a-hf --tasks arc_easy,hellaswag,mmlu --data datasets "
      "--out results");
  command->callback([options, &environment] { run_eval(*options, environment); });
}

}  // namespace deltatrain::cli
