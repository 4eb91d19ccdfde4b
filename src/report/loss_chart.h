// The loss curves of runs as an SVG picture.
#pragma once

#include <span>
#include <string>

#include "report/metrics_file.h"

namespace deltatrain::report {

// Per run: the losses of all steps as a faint line, their mean over a moving window (1 % of the
// steps, at least 1) as a strong one, validation as dots with the last value written beside it. The
// vertical range leaves out the first steps' heights above the 99th percentile unless there are few
// steps. ConfigError when no run has a loss.
std::string loss_chart_svg(std::span<const RunMetrics> runs);

}  // namespace deltatrain::report
