// One self-contained HTML page of runs: no file, font or script from elsewhere.
//
// Curves of loss, learning rate, gradient norm, throughput, parts of a step and what else the runs
// logged, with values under the pointer, zoom by dragging, smoothing and logarithmic axes; tables
// of comparisons; samples of text. src/report/page.html is the page, into which the data are put.
#pragma once

#include <span>
#include <string>

#include "report/run.h"
#include "report/run_comparison.h"

namespace deltatrain::report {

// Long series are thinned to their extremes in some thousand stretches.
std::string runs_page(std::span<const RunRecord> runs, std::span<const PairComparison> pairs,
                      const ComparisonOptions& options, const std::string& title);

// The same page without data: it asks "metrics.jsonl/OFFSET", beside it, for the bytes of a
// run's metrics.jsonl from that offset on, every two seconds.
std::string live_page(const std::string& title);

}  // namespace deltatrain::report
