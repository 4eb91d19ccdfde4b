#include "eval/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"

namespace deltatrain::eval {

namespace {

namespace fs = std::filesystem;

constexpr double kNoise = 2;  // standard errors

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// A number or text at path[0], path[1], ..., as text; "" where there is nothing.
std::string setting(const Json& json, std::initializer_list<const char*> path) {
  const Json* at = &json;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return "";
    at = &at->at(key);
  }
  if (at->is_null()) return "";
  if (at->is_number()) return formatted("%.15g", at->get<double>());
  return at->is_string() ? at->get<std::string>()
                         : at->dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<double> chance_of(const std::string& name) {
  if (name.starts_with("mmlu")) return 0.25;
  for (const Task& task : all_tasks()) {
    if (task.name == name && task.chance > 0) return task.chance;
  }
  return {};
}

bool is_higher_better(const Json& results, const std::string& task, const std::string& metric) {
  const std::string text = setting(results, {"higher_is_better", task.c_str(), metric.c_str()});
  return text.empty() ? metric.starts_with("acc") : text == "true";
}

void compare_settings(const Json& a, const Json& b, const std::vector<std::string>& tasks,
                      Comparison& comparison) {
  const auto check = [&](const std::string& what, const std::string& x, const std::string& y) {
    if (x != y && !x.empty() && !y.empty())
      comparison.differing.push_back(what + ": " + x + " and " + y);
  };
  for (const std::string& task : tasks) {
    const char* name = task.c_str();
    check(task + " version", setting(a, {"versions", name}), setting(b, {"versions", name}));
    check(task + " examples", setting(a, {"n-shot", name}), setting(b, {"n-shot", name}));
    check(task + " documents", setting(a, {"n-samples", name, "effective"}),
          setting(b, {"n-samples", name, "effective"}));
    check(task + " prompts", setting(a, {"task_hashes", name}).substr(0, 12),
          setting(b, {"task_hashes", name}).substr(0, 12));
  }
  check("special tokens", setting(a, {"config", "special_tokens"}),
        setting(b, {"config", "special_tokens"}));
  check("max_length", setting(a, {"max_length"}), setting(b, {"max_length"}));
}

}  // namespace

std::optional<double> ComparedMetric::sigma() const {
  if (!a_stderr || !b_stderr) return {};
  const double combined = std::hypot(*a_stderr, *b_stderr);
  if (combined > 0) return std::fabs(difference()) / combined;
  if (difference() == 0) return 0;
  return {};
}

Json read_results(const fs::path& path, std::string* name) {
  fs::path file = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    file.clear();
    for (fs::recursive_directory_iterator
             it(path, fs::directory_options::skip_permission_denied, error),
         end;
         !error && it != end; it.increment(error)) {
      const std::string found = it->path().filename().string();
      if (found.starts_with("results_") && found.ends_with(".json") &&
          (file.empty() || it->path() > file))
        file = it->path();
    }
    if (file.empty())
      throw FormatError(error_text(path.string(), "folder", "a results_*.json in it", "none"));
  }
  if (name != nullptr) *name = file.string();
  Json results = Json::parse(read_file(file, int64_t{1} << 30), nullptr, false);
  if (results.is_discarded() || !results.is_object() || !results.contains("results") ||
      !results.at("results").is_object())
    throw FormatError(error_text(file.string(), "file", "JSON with an object results",
                                 results.is_discarded() ? "no JSON" : "other JSON"));
  return results;
}

Comparison compare_results(const Json& a, const Json& b) {
  Comparison comparison;
  std::vector<std::string> common;
  double total = 0;
  int64_t count = 0;
  for (const auto& item : a.at("results").items()) {
    const std::string& task = item.key();
    if (!b.at("results").contains(task)) {
      comparison.only_a.push_back(task);
      continue;
    }
    common.push_back(task);
    const Json& other = b.at("results").at(task);
    if (!item.value().is_object() || !other.is_object()) continue;
    for (const auto& metric : item.value().items()) {
      const size_t comma = metric.key().find(',');
      if (comma == std::string::npos || !metric.value().is_number()) continue;
      const std::string name = metric.key().substr(0, comma), filter = metric.key().substr(comma);
      if (name.ends_with("_stderr") || !other.contains(metric.key()) ||
          !other.at(metric.key()).is_number())
        continue;
      ComparedMetric& row = comparison.metrics.emplace_back();
      row.task = task;
      row.metric = name;
      row.a = metric.value().get<double>();
      row.b = other.at(metric.key()).get<double>();
      const auto error_of = [&](const Json& entry) -> std::optional<double> {
        const std::string key = name + "_stderr" + filter;
        if (!entry.contains(key) || !entry.at(key).is_number()) return {};
        return entry.at(key).get<double>();
      };
      row.a_stderr = error_of(item.value());
      row.b_stderr = error_of(other);
      row.is_share = is_higher_better(a, task, name) && name.starts_with("acc");
      if (row.is_share) {
        row.chance = chance_of(task);
        total += 100 * std::fabs(row.difference());
        ++count;
      }
    }
  }
  for (const auto& item : b.at("results").items()) {
    if (!a.at("results").contains(item.key())) comparison.only_b.push_back(item.key());
  }
  if (comparison.metrics.empty())
    throw FormatError("compare: expected a task with one metric in both files, got none");
  compare_settings(a, b, common, comparison);
  if (count > 0) comparison.mean_absolute_pp = total / static_cast<double>(count);
  return comparison;
}

std::string past_limits(const Comparison& comparison, std::optional<double> max_pp,
                        std::optional<double> max_sigma) {
  for (const ComparedMetric& row : comparison.metrics) {
    const std::string where = row.task + " " + row.metric;
    const double pp = 100 * std::fabs(row.difference());
    // A NaN is past every limit.
    if (max_pp && row.is_share && !(pp <= *max_pp))
      return error_text(where, "difference", formatted("at most %g percentage points", *max_pp),
                        formatted("%.2f", pp));
    if (!max_sigma || (!row.a_stderr && !row.b_stderr)) continue;
    const auto sigma = row.sigma();
    if (!sigma || !(*sigma <= *max_sigma))
      return error_text(where, "difference", formatted("at most %g standard errors", *max_sigma),
                        sigma ? formatted("%.2f", *sigma) : "one without standard error");
  }
  return "";
}

std::string comparison_table(const Comparison& comparison) {
  std::string text =
      "| task | metric | A | B | B - A | standard errors apart | within noise | chance "
      "|\n|---|---|---|---|---|---|---|---|\n";
  for (const ComparedMetric& row : comparison.metrics) {
    const double scale = row.is_share ? 100 : 1;
    const auto value = [&](double score, const std::optional<double>& error) {
      return formatted("%.2f", scale * score) +
             (error ? " \u00b1 " + formatted("%.2f", scale * *error) : "");
    };
    const auto sigma = row.sigma();
    text += "| " + row.task + " | " + row.metric + " | " + value(row.a, row.a_stderr) + " | " +
            value(row.b, row.b_stderr) + " | " + formatted("%+.2f", scale * row.difference()) +
            (row.is_share ? " pp" : "") + " | " + (sigma ? formatted("%.2f", *sigma) : "") + " | " +
            (sigma ? (*sigma <= kNoise ? "yes" : "no") : "") + " | " +
            (row.chance ? formatted("%.2f", 100 * *row.chance) : "") + " |\n";
  }
  text += "\nmean absolute difference of accuracies: " +
          formatted("%.2f", comparison.mean_absolute_pp) + " percentage points\n";
  const auto missing = [&](const std::vector<std::string>& tasks, const std::string& name) {
    if (tasks.empty()) return;
    text += "only in " + name + ":";
    for (const std::string& task : tasks) text += " " + task;
    text += "\n";
  };
  missing(comparison.only_a, "A");
  missing(comparison.only_b, "B");
  for (const std::string& difference : comparison.differing)
    text += "settings differ: " + difference + "\n";
  return text;
}

}  // namespace deltatrain::eval
