// Two result files side by side: ours or the harness's.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "eval/tasks.h"

namespace deltatrain::eval {

struct ComparedMetric {
  std::string task;
  std::string metric;
  double a = 0, b = 0;
  std::optional<double> a_stderr, b_stderr;
  std::optional<double> chance;  // accuracy of guessing, where the task is known
  bool is_share = true;          // an accuracy, in percentage points; else a perplexity or the like

  double difference() const { return b - a; }
  // |difference| in combined standard errors; none where either is unknown or both are 0 and the
  // scores differ.
  std::optional<double> sigma() const;
};

struct Comparison {
  std::string name_a, name_b;
  std::vector<ComparedMetric> metrics;      // in the order of the first file
  std::vector<std::string> differing;       // settings that make the files incomparable, in words
  std::vector<std::string> only_a, only_b;  // tasks
  double mean_absolute_pp = 0;              // over accuracies
};

// A result file, or a folder: the last results_*.json below it by name. FormatError when it is
// none.
Json read_results(const std::filesystem::path& path, std::string* name = nullptr);

// Looks at every task in both files, and at the settings that decide what a score means: version,
// number of examples, documents and, where both files have them, digests of the prompts, BOS and
// limit of length.
Comparison compare_results(const Json& a, const Json& b);

// Names the first metric past a limit; empty when there is none. max_pp: percentage points, of
// accuracies; max_sigma: standard errors.
std::string past_limits(const Comparison& comparison, std::optional<double> max_pp,
                        std::optional<double> max_sigma);

std::string comparison_table(const Comparison& comparison);

}  // namespace deltatrain::eval
