// What `compare` and `plot` share: logs of runs in, comparisons and pictures out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "report/run_comparison.h"

namespace deltatrain::cli {

struct RunInputs {
  std::vector<std::string> paths;
  std::vector<double> divisors;
  int64_t logging_steps = 1;
  double tokens_per_step = 0;
  std::vector<int64_t> iterations;
  std::string range;
  int64_t warmup = -1;
  int64_t window = 1;
  int64_t steady_after = 200;

  void add_to(CLI::App& command);
  // Reads `paths`; warns of lines left out. ConfigError naming the option for what cannot be.
  std::vector<report::RunRecord> read(Environment& environment) const;
  report::ComparisonOptions comparison() const;
};

// Each run after the first against it.
std::vector<report::PairComparison> compare_all(const std::vector<report::RunRecord>& runs,
                                                const report::ComparisonOptions& options);

// ConfigError unless the name ends in .md, .csv, .json, .svg, .png or .html (where `with_tables`;
// else only the last three).
void check_output_name(const std::string& name, bool with_tables);

// Writes what the name's ending asks for, whole or not at all.
void write_output(const std::string& name, const std::vector<report::RunRecord>& runs,
                  const std::vector<report::PairComparison>& pairs,
                  const report::ComparisonOptions& options);

}  // namespace deltatrain::cli
