// deltatrain recipe show|check|plan|keys|import

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "base/files.h"
#include "base/size_text.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "config/primus_import.h"
#include "config/recipe_reader.h"
#include "config/yaml_tree.h"
#include "data/recipe_source.h"
#include "model/training_step.h"

namespace deltatrain::cli {

namespace {

using Json = nlohmann::ordered_json;

struct RecipeOptions {
  std::vector<std::string> files;
  std::vector<std::string> overrides;
  std::string device = "cpu";
  int ranks = 1;
  bool json = false;
  bool markdown = false;
  std::string out;
  std::string presets;
  bool strict = false;
  bool keep_epsilon = false;
  bool all = false;
};

// 307767232 -> "307,767,232"
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string scaled_count(double value) {
  return value < 1e8 ? fmt::format("{:.4g} M", value / 1e6) : fmt::format("{:.4g} G", value / 1e9);
}

using Rows = std::vector<std::vector<std::string>>;

// Columns padded to their widest cell but the last; two blanks between.
void print_rows(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
    }
    fmt::print("{}\n", line);
  }
}

ResolvedRecipe load(const RecipeOptions& options, const std::string& file,
                    Environment& environment) {
  ResolvedRecipe resolved = load_recipe(file, options.overrides);
  for (const std::string& text : resolved.warnings) environment.reporter.warning("recipe", text);
  return resolved;
}

// A printed value as JSON: numbers, booleans, null and lists as such, the rest as strings.
Json to_json(const std::string& yaml) {
  const YamlNode node = parse_yaml(yaml, "");
  if (node.is_scalar() && (node.quoted || !looks_typed(node.text))) return node.text;
  const Json value = Json::parse(yaml, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(node.text) : value;
}

// Every norm of the model with its epsilon:
// one that is quietly different spoils a run without a sign.
Rows norm_epsilons(const ModelConfig& model) {
  const std::string eps = fmt::format("{}", model.norm_eps);
  const bool has_delta_blocks =
      !model.attn || static_cast<int64_t>(model.attn->layers.size()) < model.num_hidden_layers;
  Rows rows = {{"attn_norm", eps, "before each mixer"},
               {"mlp_norm", eps, "before each feed-forward layer"}};
  if (has_delta_blocks) rows.push_back({"attn.o_norm", eps, "after the delta rule, gated"});
  if (model.attn) {
    const std::string rank_eps = fmt::format("{}", model.attn->norm_eps);
    if (model.attn->q_lora_rank)
      rows.push_back({"attn.q_proj.1", rank_eps, "rank of the latent attention's queries"});
    rows.push_back({"attn.kv_proj.1", rank_eps, "rank of the latent attention's keys and values"});
    if (model.attn->double_norms) {
      if (model.attn->q_lora_rank)
        rows.push_back({"attn.q_second_norm", rank_eps, "behind the norm of the queries' rank"});
      rows.push_back({"attn.kv_second_norm", rank_eps, "behind the norm of keys and values"});
    }
  }
  rows.push_back({"norm", eps, "before the output head"});
  return rows;
}

void show(const RecipeOptions& options, Environment& environment) {
  const ResolvedRecipe resolved = load(options, options.files.front(), environment);
  const Rows norms = norm_epsilons(resolved.recipe.model);
  if (options.json) {
    Json values = Json::object(), eps = Json::object();
    for (const RecipeValue& value : list_values(resolved)) {
      values[value.key] = {{"value", to_json(value.text)}, {"origin", value.origin}};
    }
    for (const auto& row : norms) eps[row[0]] = to_json(row[1]);
    const Json root = {{"file", options.files.front()},
                       {"digest", resolved.digest()},
                       {"values", values},
                       {"norm_eps", eps},
                       {"warnings", resolved.warnings}};
    fmt::print("{}\n", root.dump(2));
    return;
  }
  Rows rows;
  for (const RecipeValue& value : list_values(resolved))
    rows.push_back({value.key, value.text, value.origin});
  print_rows(rows);
  fmt::print("\nepsilon of each norm\n");
  print_rows(norms);
  fmt::print("\ndigest  {}\n", resolved.digest());
}

void check(const RecipeOptions& options, Environment& environment) {
  int64_t num_refused = 0;
  for (const std::string& file : options.files) {
    try {
      const ResolvedRecipe resolved = load(options, file, environment);
      fmt::print("{}: good, {} parameters, digest {}\n", file,
                 grouped(count_parameters(resolved.recipe.model)), resolved.digest().substr(0, 16));
    } catch (const Error& error) {
      if (options.files.size() == 1) throw;
      fmt::print("{}\n", error.what());
      ++num_refused;
    }
  }
  if (num_refused > 0) {
    throw ConfigError(fmt::format("recipe check: {} of {} files are no good recipe", num_refused,
                                  options.files.size()));
  }
}

constexpr int64_t kGiB = int64_t{1} << 30;

struct PlanDevice {
  std::string name;
  DeviceKind kind;
  int64_t memory_bytes;
};

PlanDevice parse_device(const std::string& text) {
  if (text == "cpu")
    return {text, DeviceKind::kCpu, ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE)};
  if (text == "h200") return {text, DeviceKind::kCuda, 139 * kGiB};
  if (text == "h100") return {text, DeviceKind::kCuda, 79 * kGiB};
  double count = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_size =
      error == std::errc() && std::string_view(stop) == "GiB" && count > 0 && count < 1e6;
  if (!is_size)
    throw ConfigError(
        error_text("--device", "", "cpu, h200, h100 or a size such as 24GiB", "\"" + text + "\""));
  return {text, DeviceKind::kCuda, static_cast<int64_t>(count * static_cast<double>(kGiB))};
}

// What a step of the recipe takes on a device:
// the real step, run on a backend that only records sizes.
class MemoryPlanner {
 public:
  MemoryPlanner(const Recipe& recipe, const PlanDevice& device, int ranks)
      : recipe_(recipe),
        device_(device),
        ranks_(ranks),
        max_documents_(data::max_documents_in_row(recipe)) {
    backend::BackendOptions backend_options;
    backend_options.planned = device.kind;
    backend_ = backend::make_backend(DeviceKind::kPlan, backend_options);
    const bool is_bf16 =
        device.kind == DeviceKind::kCuda && recipe.train.precision == Precision::kBf16;
    context_ = Context{
        &backend_->device(), &backend_->table(), nullptr, is_bf16 ? DType::kBF16 : DType::kF32,
        recipe.train.fp32_residual_connection ? ResidualStream::kF32 : ResidualStream::kActivation};
  }

  MemoryPlan plan(int64_t micro_batch_size) const {
    return TrainingStep::plan(
        context_, recipe_.model,
        BatchShape{.num_rows = micro_batch_size * recipe_.train.seq_length,
                   .num_sequences = micro_batch_size * max_documents_,
                   .lengths = max_documents_ > 1 ? SequenceLengths::kAny : SequenceLengths::kEqual,
                   .loss_chunk_rows = recipe_.parallel.loss_chunk_rows},
        TrainingStep::Purpose::kTrain,
        StepRanks{.sharding = {.num_ranks = ranks_,
                               .sharded = recipe_.parallel.use_distributed_optimizer,
                               .bucket_elements = recipe_.parallel.ddp_bucket_size},
                  .config = recipe_.parallel});
  }

  // The largest micro-batch below the recipe's that divides the global batch and fits, or 0.
  int64_t find_fitting() const {
    for (int64_t size = recipe_.train.micro_batch_size - 1; size > 0; --size) {
      if (recipe_.train.global_batch_size % size == 0 &&
          plan(size).total(device_.kind != DeviceKind::kCuda) <= device_.memory_bytes)
        return size;
    }
    return 0;
  }

 private:
  const Recipe& recipe_;
  const PlanDevice& device_;
  const int ranks_;
  const int64_t max_documents_;  // in a row, as train plans for
  std::unique_ptr<backend::Backend> backend_;
  Context context_;
};

Rows memory_rows(const MemoryPlanner& planner, const MemoryPlan& memory, const PlanDevice& device) {
  const int64_t total = memory.total(device.kind != DeviceKind::kCuda);
  Rows rows = {{"memory", size_text(total)},
               {"  parameters", size_text(memory.parameters)},
               {"  gradients", size_text(memory.gradients)},
               {"  optimizer state", size_text(memory.optimizer)},
               {"  saved activations", size_text(memory.saved_activations)},
               {"  scratch", size_text(memory.scratch)},
               {"  batch", size_text(memory.batch)},
               {device.kind == DeviceKind::kCuda ? "  checkpoint, host" : "  checkpoint copy",
                size_text(memory.checkpoint_copy)}};
  if (device.kind != DeviceKind::kCuda) rows.push_back({"  program", size_text(memory.program)});
  std::string verdict = size_text(device.memory_bytes) + " (" + device.name + "): ";
  if (total <= device.memory_bytes) {
    verdict += "fits";
  } else if (const int64_t size = planner.find_fitting(); size > 0) {
    verdict += fmt::format("does not fit, train.micro_batch_size {} would", size);
  } else {
    verdict += "does not fit, nor does any smaller micro-batch";
  }
  rows.push_back({"device memory", verdict});
  return rows;
}

void plan(const RecipeOptions& options, Environment& environment) {
  const PlanDevice device = parse_device(options.device);
  const ResolvedRecipe resolved = load(options, options.files.front(), environment);
  const Recipe& r = resolved.recipe;
  const ModelConfig& m = r.model;
  const int64_t parameters = count_parameters(m);
  const int64_t embedding = m.vocab_size * m.hidden_size * (m.tie_word_embeddings ? 1 : 2);
  const double flops = count_flops_per_token(m, r.train.seq_length);
  const int64_t tokens_per_step = r.train.global_batch_size * r.train.seq_length;
  const double tokens =
      static_cast<double>(tokens_per_step) * static_cast<double>(r.train.train_iters);
  const int64_t batches = r.train.global_batch_size / r.train.micro_batch_size;
  if (batches % options.ranks != 0)
    throw ConfigError(error_text(options.files.front(), "--ranks",
                                 "a number that divides train.global_batch_size / "
                                 "train.micro_batch_size, " +
                                     std::to_string(batches),
                                 std::to_string(options.ranks)));
  const int64_t accumulation = batches / options.ranks;
  std::optional<MemoryPlanner> planner;
  std::string no_memory;  // why the memory isn't known
  try {
    planner.emplace(r, device, options.ranks);
  } catch (const UnsupportedError& error) {  // head sizes, say
    no_memory = error.what();
  } catch (const DeviceError& error) {  // a build without the backend
    no_memory = error.what();
  }
  MemoryPlan memory;
  if (planner) memory = planner->plan(r.train.micro_batch_size);
  if (options.json) {
    Json root = {{"file", options.files.front()},
                 {"parameters", parameters},
                 {"embedding_parameters", embedding},
                 {"flops_per_token", flops},
                 {"tokens_per_step", tokens_per_step},
                 {"steps", r.train.train_iters},
                 {"tokens", tokens},
                 {"flops", flops * tokens},
                 {"ranks", options.ranks},
                 {"micro_batches_per_step_on_one_rank", accumulation},
                 {"device", device.name},
                 {"device_memory_bytes", device.memory_bytes},
                 {"memory_bytes", nullptr}};
    if (planner) {
      root["memory_bytes"] = {{"parameters", memory.parameters},
                              {"gradients", memory.gradients},
                              {"optimizer", memory.optimizer},
                              {"saved_activations", memory.saved_activations},
                              {"scratch", memory.scratch},
                              {"batch", memory.batch},
                              {"checkpoint_copy", memory.checkpoint_copy},
                              {"program", memory.program},
                              {"total", memory.total(device.kind != DeviceKind::kCuda)}};
    }
    fmt::print("{}\n", root.dump(2));
    return;
  }
  Rows rows = {
      {"parameters", grouped(parameters)},
      {"  embedding and head", grouped(embedding)},
      {"  blocks and norms", grouped(parameters - embedding)},
      {"FLOPs per token", fmt::format("{}, forward and backward, at {} tokens per sequence",
                                      scaled_count(flops), r.train.seq_length)},
      {"tokens per step",
       fmt::format(
           "{}, in {} micro-batches of {} x {} on {}", grouped(tokens_per_step), accumulation,
           r.train.micro_batch_size, r.train.seq_length,
           options.ranks == 1 ? "one rank" : fmt::format("each of {} ranks", options.ranks))},
      {"steps", grouped(r.train.train_iters)},
      {"tokens", scaled_count(tokens)},
      {"FLOPs", fmt::format("{:.3e}", flops * tokens)},
  };
  if (planner) {
    for (auto& row : memory_rows(*planner, memory, device)) rows.push_back(std::move(row));
  } else {
    rows.push_back({"memory", "not known: " + no_memory});
  }
  print_rows(rows);
}

void keys(const RecipeOptions& options) {
  if (options.markdown) {
    fmt::print("{}", recipe_keys_markdown());
  } else {
    fmt::print("{}", recipe_keys_text());
  }
}

void print_report(const ImportResult& result, bool all) {
  Rows rows;
  int64_t num_left_out = 0;
  for (const ImportStatus status : {ImportStatus::kRefused, ImportStatus::kLeaked,
                                    ImportStatus::kMapped, ImportStatus::kInert}) {
    for (const ImportRow& row : result.rows) {
      if (row.status != status) continue;
      if (row.is_framework && !all) {
        ++num_left_out;
        continue;
      }
      rows.push_back({import_status_name(status), row.key, row.value, row.origin, row.note});
    }
  }
  print_rows(rows);
  if (num_left_out > 0)
    fmt::print("inert   {} more keys of the framework's presets (--all lists them)\n",
               num_left_out);
}

void print_report_json(const ImportResult& result) {
  Json rows = Json::array();
  for (const ImportRow& row : result.rows) {
    rows.push_back({{"status", import_status_name(row.status)},
                    {"key", row.key},
                    {"value", row.value},
                    {"origin", row.origin},
                    {"note", row.note}});
  }
  fmt::print("{}\n", rows.dump(2));
}

void import(const RecipeOptions& options, Environment& environment) {
  const std::string& file = options.files.front();
  if (std::filesystem::exists(options.out)) {
    throw ConfigError(
        error_text("--out", "", "a file that does not exist yet", "\"" + options.out + "\""));
  }
  const ImportResult result = import_experiment(file, {.presets = options.presets,
                                                       .overrides = options.overrides,
                                                       .keep_epsilon = options.keep_epsilon});
  options.json ? print_report_json(result) : print_report(result, options.all);
  const int64_t num_refused = result.count(ImportStatus::kRefused),
                num_leaked = result.count(ImportStatus::kLeaked);
  if (num_refused > 0) {
    throw ConfigError(fmt::format("{}: {} of its settings refused, see the report; nothing written",
                                  file, num_refused));
  }
  if (options.strict && num_leaked > 0) {
    throw ConfigError(fmt::format(
        "{}: {} of its settings leaked in, see the report; nothing written because of --strict",
        file, num_leaked));
  }
  write_file_atomically(options.out, "# From " + file + "\n" + recipe_to_yaml(result.recipe));
  environment.reporter.message("recipe",
                               fmt::format("{} written, {} parameters", options.out,
                                           grouped(count_parameters(result.recipe.model))));
}

CLI::App* add(CLI::App& parent, const char* name, const char* description,
              const std::shared_ptr<RecipeOptions>& options, bool many_files, const char* example) {
  CLI::App* command = parent.add_subcommand(name, description);
  CLI::Option* files =
      command->add_option("file", options->files, many_files ? "Recipes" : "Recipe");
  files->required()->type_name("FILE");
  if (!many_files) files->expected(1);
  command
      ->add_option("--set", options->overrides,
                   "Replaces a value of the file; may be given several times")
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command->footer([example] {
    return "Example: " + std::string(example) + "\n\nKeys of a recipe:\n\n" + recipe_keys_text();
  });
  return command;
}

}  // namespace

void add_recipe_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<RecipeOptions>();
  CLI::App* recipe = app.add_subcommand("recipe", "Shows, checks and plans training recipes");
  recipe->require_subcommand(1);
  recipe->footer(
      "Example: deltatrain recipe show recipes/gdn/gdn_300m.yaml --set optimizer.lr=3e-4");

  CLI::App* command = add(
      *recipe, "show", "Prints every value with its origin: file and line, --set or default",
      options, false, "deltatrain recipe show recipes/gdn/gdn_300m.yaml --set optimizer.lr=3e-4");
  command->add_flag("--json", options->json, "Prints JSON");
  command->callback([options, &environment] { show(*options, environment); });

  command =
      add(*recipe, "check", "Says whether recipes are good, or the first thing wrong with each",
          options, true, "deltatrain recipe check recipes/gdn/*.yaml");
  command->callback([options, &environment] { check(*options, environment); });

  command = add(*recipe, "plan",
                "Prints parameters, FLOPs, tokens and memory of a run before anything runs",
                options, false, "deltatrain recipe plan recipes/gdn/gdn_300m.yaml --device h200");
  command
      ->add_option("--device", options->device, "cpu, h200, h100, or a memory size such as 24GiB")
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "Memory of one rank among so many")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Prints JSON");
  command->callback([options, &environment] { plan(*options, environment); });

  command = recipe->add_subcommand(
      "import", "Makes a recipe of a Primus experiment file, with a report of every key");
  command->add_option("file", options->files, "Experiment file")
      ->required()
      ->expected(1)
      ->type_name("FILE");
  command->add_option("--out", options->out, "Recipe to write")->required()->type_name("FILE");
  command
      ->add_option("--set", options->overrides,
                   "A setting of the experiment, as on the reference's command line")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command
      ->add_option("--presets", options->presets,
                   "Folder that holds primus/configs; default: a parent of FILE")
      ->type_name("FOLDER");
  command->add_flag("--strict", options->strict,
                    "Refuses settings that leaked in instead of correcting them");
  command->add_flag("--keep-eps", options->keep_epsilon, "Keeps a norm epsilon that leaked in");
  command->add_flag("--all", options->all, "Lists the inert keys of the framework's presets too");
  command->add_flag("--json", options->json, "Prints the report as JSON");
  command->footer(
      "Example: deltatrain recipe import "
      "examples/megatron/configs/MI300X/gdn_300M_pure-pretrain.yaml "
      "--out gdn_300m.yaml");
  command->callback([options, &environment] { import(*options, environment); });

  command =
      recipe->add_subcommand("keys", "Lists every key of a recipe with type, default and meaning");
  command->add_flag("--markdown", options->markdown, "Prints the tables of docs/recipes.md");
  command->footer("Example: deltatrain recipe keys");
  command->callback([options] { keys(*options); });
}

}  // namespace deltatrain::cli
