#include "report/metrics_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace deltatrain::report {

namespace {

std::vector<MetricPoint> to_points(const std::map<int64_t, double>& values) {
  std::vector<MetricPoint> points;
  for (const auto& [step, loss] : values) points.push_back({step, loss});
  return points;
}

}  // namespace

RunMetrics read_run_metrics(const std::filesystem::path& path) {
  const bool is_folder = std::filesystem::is_directory(path);
  const std::filesystem::path file_path = is_folder ? path / "metrics.jsonl" : path;
  std::ifstream file(file_path);
  if (!file) {
    throw FileError(file_path.string() + ": cannot be opened: " + std::strerror(errno),
                    ExitCode::kBadInput);
  }
  RunMetrics metrics;
  std::filesystem::path folder = std::filesystem::absolute(file_path).parent_path();
  metrics.name = folder.filename().string();
  std::map<int64_t, double> losses, validation;
  std::string line;
  int64_t number = 0, understood = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.empty()) continue;
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_discarded() || !entry.is_object()) {
      ++metrics.ignored_lines;
      continue;
    }
    const auto kind = entry.find("kind");
    if (kind == entry.end() || !kind->is_string()) {
      throw FormatError(
          error_text(file_path.string() + ":" + std::to_string(number), "kind", "a text", "none"));
    }
    ++understood;
    const bool is_step = *kind == "step", is_validation = *kind == "validation";
    if (!is_step && !is_validation) continue;
    const auto step = entry.find("step"), loss = entry.find("loss");
    if (step == entry.end() || !step->is_number_integer() || loss == entry.end() ||
        !(loss->is_number() || loss->is_null())) {
      throw FormatError(error_text(file_path.string() + ":" + std::to_string(number),
                                   "step and loss", "a whole number and a number or null",
                                   "something else"));
    }
    auto& values = is_step ? losses : validation;
    if (loss->is_null() || entry.contains("skipped")) {
      values.erase(step->get<int64_t>());
    } else {
      values[step->get<int64_t>()] = loss->get<double>();
    }
  }
  if (understood == 0) {
    throw FormatError(error_text(file_path.string(), "", "lines of JSON with a kind", "none"));
  }
  metrics.losses = to_points(losses);
  metrics.validation = to_points(validation);
  return metrics;
}

}  // namespace deltatrain::report
