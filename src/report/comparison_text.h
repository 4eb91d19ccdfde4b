// Comparisons of runs as Markdown, CSV and JSON.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/run_comparison.h"

namespace deltatrain::report {

// A table as texts, for whatever shows it.
struct TextTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
TextTable loss_table(const PairComparison& pair);     // iterations; the last column is notes
TextTable summary_table(const PairComparison& pair);  // what, A, B, B against A
TextTable speed_table(std::span<const RunRecord* const> runs, const ComparisonOptions& options);

// For each pair a table and its summary, for all runs a table of speed.
std::string comparison_markdown(std::span<const PairComparison> pairs,
                                const ComparisonOptions& options);
// One line per pair and iteration; empty fields where nothing is known.
std::string comparison_csv(std::span<const PairComparison> pairs);
// Every value and limit; null where nothing is known.
std::string comparison_json(std::span<const PairComparison> pairs,
                            const ComparisonOptions& options);

// Two decimals: "+1.21", "\u22120.03" with Unicode's minus, "0.00".
std::string signed_percent(double percent);

}  // namespace deltatrain::report
