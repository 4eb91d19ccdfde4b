#include "eval/results.h"

#include <sys/time.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"

namespace deltatrain::eval {

namespace {

namespace fs = std::filesystem;

Json error_json(const std::optional<double>& value) { return value ? Json(*value) : Json("N/A"); }

// Keys in the order of the alphabet.
Json sorted(const std::map<std::string, Json>& items) {
  Json result = Json::object();
  for (const auto& [key, value] : items) result[key] = value;
  return result;
}

Json task_entry(const TaskRun& run) {
  Json entry = {{"name", run.task.name},
                {"alias", run.task.alias},
                {"sample_len", static_cast<int64_t>(run.samples.size())}};
  for (size_t m = 0; m < run.metrics.size(); ++m) {
    const std::string name(run.task.metrics[m].name);
    entry[name + ",none"] = run.metrics[m].value;
    entry[name + "_stderr,none"] = error_json(run.metrics[m].stderr_value);
  }
  return entry;
}

Json group_entry(const GroupRun& run) {
  return {{"alias", run.group.alias},
          {"name", run.group.name},
          {"sample_len", run.num_samples},
          {"acc,none", run.acc.value},
          {"acc_stderr,none", error_json(run.acc.stderr_value)},
          {"sample_count", {{"acc,none", run.num_samples}}}};
}

const char* output_type(const Task& task) {
  if (task.form == TaskForm::kWikitext) return "loglikelihood_rolling";
  return task.form == TaskForm::kLambada ? "loglikelihood" : "multiple_choice";
}

Json task_config(const TaskRun& run, const EvaluationOptions& options,
                 const RunDescription& description) {
  const Task& task = run.task;
  Json metrics = Json::array();
  for (const Metric& metric : task.metrics) {
    const bool is_mean = metric.name.starts_with("acc");
    std::string aggregation = is_mean ? "mean" : std::string(metric.name);
    if (metric.name.ends_with("_perplexity")) aggregation = "weighted_perplexity";
    metrics.push_back({{"metric", metric.name},
                       {"aggregation", aggregation},
                       {"higher_is_better", metric.higher_is_better}});
  }
  Json config = {{"task", task.name}, {"task_alias", task.alias}, {"dataset_path", task.dataset}};
  if (!task.config.empty()) config["dataset_name"] = task.config;
  config[task.scored_split == "test" ? "test_split" : "validation_split"] = task.scored_split;
  if (!task.fewshot_split.empty()) config["fewshot_split"] = task.fewshot_split;
  config["description"] = task.description;
  config["target_delimiter"] = " ";
  config["fewshot_delimiter"] = "\n\n";
  config["num_fewshot"] = options.num_fewshot;
  config["metric_list"] = metrics;
  config["output_type"] = output_type(task);
  config["repeats"] = 1;
  config["metadata"] = {{"version", task.version}, {"pretrained", description.model}};
  return config;
}

Json run_config(const Evaluation& evaluation, const RunDescription& run) {
  const EvaluationOptions& options = evaluation.options();
  Json truncated = Json::object(), files = Json::object();
  for (const TaskRun& task : evaluation.tasks()) {
    if (task.truncated_requests > 0)
      truncated[task.task.name] = {{"requests", task.truncated_requests},
                                   {"tokens", task.truncated_tokens}};
    for (const auto& [name, digest] : task.files) files[name] = digest;
  }
  const std::string dtype = run.dtype == "bf16"  ? "torch.bfloat16"
                            : run.dtype == "f64" ? "torch.float64"
                                                 : "torch.float32";
  Json batch_sizes = Json::array();
  if (run.batch_size == "auto") batch_sizes.push_back(run.chosen_batch_size);
  Json batch_size = run.batch_size == "auto" ? Json("auto") : Json(run.chosen_batch_size);
  return {{"model", "deltatrain"},
          {"model_args",
           {{"pretrained", run.model}, {"dtype", run.dtype}, {"max_length", options.max_length}}},
          {"model_num_parameters", run.num_parameters},
          {"model_dtype", dtype},
          {"model_revision", "main"},
          {"model_sha", ""},
          {"batch_size", batch_size},
          {"batch_sizes", batch_sizes},
          {"device", run.device},
          {"use_cache", nullptr},
          {"limit", options.limit ? Json(*options.limit) : Json(nullptr)},
          {"bootstrap_iters", options.bootstrap_iters},
          {"gen_kwargs", Json::object()},
          {"random_seed", 0},
          {"numpy_seed", 1234},
          {"torch_seed", 1234},
          {"fewshot_seed", options.fewshot_seed},
          // From here on this program's own.
          {"evaluator", "deltatrain"},
          {"evaluator_version", run.version},
          {"scoring_mode", run.scoring == ScorePrecision::kBF16 ? "bf16" : "fp32"},
          {"add_bos", run.add_bos},
          {"special_tokens", run.special_tokens_rule},
          {"race_version", options.race_version},
          {"truncated", truncated},
          {"data_files", files},
          {"num_requests", static_cast<int64_t>(evaluation.requests().size())},
          {"num_contexts", run.work.num_contexts},
          {"tokens", run.work.tokens},
          {"tokens_without_shared_contexts", run.work.tokens_unshared}};
}

Json token_json(int32_t id, const std::string& text) {
  return Json::array(
      {id < 0 ? Json(nullptr) : Json(text), id < 0 ? Json("None") : Json(std::to_string(id))});
}

std::string model_folder(const std::string& model) {
  std::string result;
  bool in_run = false;
  for (const char c : model) {
    const bool is_special = std::string_view("\"<>:/|\\?*[]").find(c) != std::string_view::npos;
    if (!is_special) result += c;
    if (is_special && !in_run) result += "__";
    in_run = is_special;
  }
  return result;
}

// A table column by column, as wide as its longest cell.
struct Column {
  std::string header;
  bool is_number = false;
  std::vector<std::string> cells;
};

size_t width_of(const std::string& text) {  // in characters
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// Numbers with as many decimals as the most precise one needs.
void trim_decimals(Column& column) {
  size_t surplus = 4;
  for (const std::string& cell : column.cells) {
    const size_t point = cell.find('.');
    if (point == std::string::npos) continue;
    surplus = std::min(surplus, cell.size() - 1 - cell.find_last_not_of('0'));
  }
  for (std::string& cell : column.cells) {
    if (cell.find('.') == std::string::npos) continue;
    cell.resize(cell.size() - surplus);
    if (cell.ends_with('.')) cell.pop_back();
  }
}

std::string markdown(const std::vector<Column>& columns) {
  std::vector<size_t> widths;
  for (const Column& column : columns) {
    // "---" at least, with a colon for numbers.
    size_t width = std::max(width_of(column.header), size_t{3});
    for (const std::string& cell : column.cells) width = std::max(width, width_of(cell));
    widths.push_back(width);
  }
  std::string text = "|";
  for (size_t c = 0; c < columns.size(); ++c) {
    const size_t space = widths[c] - width_of(columns[c].header);
    text +=
        std::string(space / 2, ' ') + columns[c].header + std::string(space - space / 2, ' ') + "|";
  }
  text += "\n|";
  for (size_t c = 0; c < columns.size(); ++c)
    text += columns[c].is_number ? std::string(widths[c] - 1, '-') + ":|"
                                 : std::string(widths[c], '-') + "|";
  for (size_t row = 0; row < columns[0].cells.size(); ++row) {
    text += "\n|";
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string& cell = columns[c].cells[row];
      const std::string space(widths[c] - width_of(cell), ' ');
      text += (columns[c].is_number ? space + cell : cell + space) + "|";
    }
  }
  return text + "\n";
}

std::string four_decimals(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

std::string table_of(const Json& results, const std::vector<std::pair<int, std::string>>& rows,
                     const char* title) {
  std::vector<Column> columns = {{title, false, {}},   {"Version", true, {}}, {"Filter", false, {}},
                                 {"n-shot", true, {}}, {"Metric", false, {}}, {"", false, {}},
                                 {"Value", true, {}},  {"", false, {}},       {"Stderr", true, {}}};
  constexpr const char* kEnding = ",none";
  for (const auto& [depth, key] : rows) {
    const Json& entry = results.at("results").at(key);
    std::vector<std::string> metrics;
    for (const auto& item : entry.items()) {
      const std::string& name = item.key();
      if (name.ends_with(kEnding) && name.find("_stderr,") == std::string::npos &&
          item.value().is_number())
        metrics.push_back(name.substr(0, name.size() - 5));
    }
    std::sort(metrics.begin(), metrics.end());
    bool is_first = true;
    for (const std::string& metric : metrics) {
      const std::string alias = entry.value("alias", key);
      const std::string shown =
          depth > 0 ? std::string(static_cast<size_t>(depth), ' ') + "- " + alias : alias;
      const Json& versions = results.at("versions");
      const Json version = versions.contains(key) ? versions.at(key) : Json("");
      const Json& shots = results.at("n-shot");
      const Json& directions = results.at("higher_is_better");
      std::string arrow;
      if (directions.contains(key) && directions.at(key).contains(metric))
        arrow = directions.at(key).at(metric).get<bool>() ? "\u2191" : "\u2193";
      const Json error = entry.value(metric + "_stderr,none", Json("N/A"));
      const std::string version_text =
          version.is_string() ? version.get<std::string>()
                              : std::to_string(static_cast<int64_t>(version.get<double>()));
      const std::string cells[] = {
          is_first ? shown : "",
          is_first ? version_text : "",
          "none",
          shots.contains(key) ? shots.at(key).dump() : "",
          metric,
          arrow,
          four_decimals(entry.at(metric + ",none").get<double>()),
          "\u00b1",
          error.is_number() ? four_decimals(error.get<double>()) : "   N/A"};
      for (size_t c = 0; c < columns.size(); ++c) columns[c].cells.push_back(cells[c]);
      is_first = false;
    }
  }
  for (Column& column : columns) {
    if (!column.is_number) continue;
    column.is_number =
        std::find(column.cells.begin(), column.cells.end(), "   N/A") == column.cells.end();
    if (column.is_number) trim_decimals(column);
  }
  return markdown(columns);
}

void add_tree(const Json& results, const std::string& key, int depth,
              std::vector<std::pair<int, std::string>>& rows) {
  if (depth > 8 || !results.at("results").contains(key)) return;
  rows.emplace_back(depth, key);
  const Json& children = results.at("group_subtasks");
  if (!children.contains(key)) return;
  auto names = children.at(key).get<std::vector<std::string>>();
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) add_tree(results, name, depth + 1, rows);
}

Json sample_line(const TaskRun& run, const Sample& sample) {
  const Question& question = sample.question;
  Json arguments = Json::object(), responses = Json::array(), filtered = Json::array();
  for (size_t i = 0; i < sample.scores.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    Json pair = {{"arg_0", sample.prefix + question.context(index)}};
    Json response = python_number(sample.scores[i].log_likelihood);
    if (run.task.form != TaskForm::kWikitext) {
      pair["arg_1"] = question.continuation(index);
      response = Json::array({response, sample.scores[i].is_greedy ? "True" : "False"});
    }
    arguments["gen_args_" + std::to_string(i)] = pair;
    responses.push_back(Json::array({response}));
    filtered.push_back(response);
  }
  Json metrics = Json::array();
  for (const Metric& metric : run.task.metrics) metrics.push_back(metric.name);
  Json line = {{"doc_id", sample.doc_id},
               {"doc", *sample.document},
               {"target", question.target},
               {"arguments", arguments},
               {"resps", responses},
               {"filtered_resps", filtered},
               {"filter", "none"},
               {"metrics", metrics},
               {"doc_hash", sample.hashes.document},
               {"prompt_hash", sample.hashes.prompt},
               {"target_hash", sample.hashes.target}};
  for (size_t m = 0; m < run.task.metrics.size(); ++m) {
    const std::string name(run.task.metrics[m].name);
    line[name] = sample.values[m];
    if (run.task.form == TaskForm::kWikitext)
      line[name] = Json::array(
          {sample.values[m], name == "word_perplexity" ? question.num_words : question.num_bytes});
  }
  return line;
}

}  // namespace

Json results_json(const Evaluation& evaluation, const RunDescription& run) {
  const EvaluationOptions& options = evaluation.options();
  Json entries = Json::object(), groups = Json::object(), subtasks = Json::object(),
       samples = Json::object();
  std::map<std::string, Json> configs, versions, shots, directions, hashes;
  for (const TaskRun& task : evaluation.tasks()) {
    const std::string& name = task.task.name;
    entries[name] = task_entry(task);
    samples[name] = {{"original", task.num_original},
                     {"effective", static_cast<int64_t>(task.samples.size())}};
    configs[name] = task_config(task, options, run);
    versions[name] = task.task.version;
    shots[name] = options.num_fewshot;
    hashes[name] = task.hash;
    for (const Metric& metric : task.task.metrics)
      directions[name][std::string(metric.name)] = metric.higher_is_better;
  }
  for (const GroupRun& group : evaluation.groups()) {
    entries[group.group.name] = group_entry(group);
    groups[group.group.name] = group_entry(group);
    versions[group.group.name] = group.group.version;
    if (group.group.parent.empty())
      continue;  // its children are groups, which the harness does not ask
    shots[group.group.name] = options.num_fewshot;
    directions[group.group.name]["acc"] = true;
  }
  for (auto it = evaluation.groups().rbegin(); it != evaluation.groups().rend(); ++it) {
    if (it->group.parent.empty()) subtasks[it->group.name] = it->children;
  }
  for (const GroupRun& group : evaluation.groups()) {
    if (!group.group.parent.empty()) subtasks[group.group.name] = group.children;
  }
  for (const TaskRun& task : evaluation.tasks()) {
    if (task.task.group.empty()) subtasks[task.task.name] = Json::array();
  }
  Json result = {{"results", entries}};
  if (!groups.empty()) result["groups"] = groups;
  result["group_subtasks"] = subtasks;
  result["configs"] = sorted(configs);
  result["versions"] = sorted(versions);
  result["n-shot"] = sorted(shots);
  result["higher_is_better"] = sorted(directions);
  result["n-samples"] = samples;
  result["config"] = run_config(evaluation, run);
  result["git_hash"] = nullptr;
  result["date"] = run.start_unix_seconds;
  result["pretty_env_info"] = "deltatrain " + run.version + ", " + run.device;
  result["transformers_version"] = nullptr;
  result["lm_eval_version"] = nullptr;
  result["upper_git_hash"] = nullptr;
  const bool has_pad = run.pad_id >= 0;
  result["tokenizer_pad_token"] =
      token_json(has_pad ? run.pad_id : run.eos_id, has_pad ? run.pad_text : run.eos_text);
  result["tokenizer_eos_token"] = token_json(run.eos_id, run.eos_text);
  result["tokenizer_bos_token"] = token_json(run.bos_id, run.bos_text);
  result["eot_token_id"] = run.eos_id < 0 ? Json(nullptr) : Json(run.eos_id);
  result["max_length"] = options.max_length;
  result["task_hashes"] = sorted(hashes);
  result["model_source"] = "deltatrain";
  result["model_name"] = run.model;
  result["model_name_sanitized"] = model_folder(run.model);
  for (const char* key : {"system_instruction", "system_instruction_sha", "fewshot_as_multiturn",
                          "chat_template", "chat_template_sha"})
    result[key] = nullptr;
  result["total_evaluation_time_seconds"] = python_number(run.total_seconds);
  return result;
}

std::string results_table(const Json& results) {
  std::vector<std::pair<int, std::string>> rows;
  std::vector<std::string> names, roots;
  std::vector<std::string> nested;
  for (const auto& item : results.at("group_subtasks").items()) {
    for (const Json& child : item.value()) nested.push_back(child.get<std::string>());
  }
  const bool has_groups = results.contains("groups");
  for (const auto& item : results.at("results").items()) {
    if (std::find(nested.begin(), nested.end(), item.key()) != nested.end()) continue;
    (has_groups && results.at("groups").contains(item.key()) ? roots : names).push_back(item.key());
  }
  std::sort(roots.begin(), roots.end());
  std::sort(names.begin(), names.end());
  for (const std::string& name : roots) add_tree(results, name, 0, rows);
  for (const std::string& name : names) rows.emplace_back(0, name);
  std::string text = table_of(results, rows, "Tasks");
  if (!has_groups) return text;
  std::vector<std::pair<int, std::string>> group_rows;
  for (const auto& row : rows) {
    if (results.at("groups").contains(row.second)) group_rows.push_back(row);
  }
  return text + "\n" + table_of(results, group_rows, "Groups");
}

std::string file_stamp() {
  timeval now{};
  gettimeofday(&now, nullptr);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  char text[64], fraction[16];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H-%M-%S", &local);
  std::snprintf(fraction, sizeof fraction, ".%06d", static_cast<int>(now.tv_usec));
  return text + std::string(now.tv_usec == 0 ? "" : fraction);
}

ResultFiles result_files(const fs::path& out, const std::string& model, const std::string& stamp) {
  if (out.extension() == ".json") {
    const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
    return {folder / (out.stem().string() + "_" + stamp + ".json"), folder};
  }
  const fs::path folder = out / model_folder(model);
  return {folder / ("results_" + stamp + ".json"), folder};
}

void write_results(const ResultFiles& files, const Json& results) {
  fs::create_directories(files.folder);
  write_file_atomically(files.results, results.dump(2) + "\n");
}

void write_samples(const ResultFiles& files, const Evaluation& evaluation,
                   const std::string& stamp) {
  fs::create_directories(files.folder);
  for (const TaskRun& run : evaluation.tasks()) {
    AtomicFileWriter file(files.folder / ("samples_" + run.task.name + "_" + stamp + ".jsonl"));
    for (const Sample& sample : run.samples) file.write(sample_line(run, sample).dump() + "\n");
    file.commit();
  }
}

}  // namespace deltatrain::eval
