// metrics.jsonl of a run, read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace deltatrain::report {

struct MetricPoint {
  int64_t step = 0;
  double loss = 0;
};

struct RunMetrics {
  std::string name;  // of the run's folder
  std::vector<MetricPoint>
      losses;  // ascending steps; steps that were left out or had no loss are absent
  std::vector<MetricPoint> validation;  // ascending steps
  int64_t ignored_lines = 0;            // cut off in mid-line when the run was killed
};

// `path`: a run's folder or its metrics.jsonl. Where a resumed run
// repeats steps, the later line counts. FormatError naming file and line
// for what is no such file; a cut-off line is counted and left out.
RunMetrics read_run_metrics(const std::filesystem::path& path);

}  // namespace deltatrain::report
