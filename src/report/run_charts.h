// The curves of runs as a picture.
#pragma once

#include <span>
#include <string>

#include "report/run.h"
#include "report/run_comparison.h"

namespace deltatrain::report {

enum class PictureKind : uint8_t { kSvg, kPng };

// Losses over steps. Per run: what was logged as a faint line, its mean over a window around each
// point (1 % of the points) as a strong one, validation as dots with the last value in the legend, spikes as
// triangles, and steps without a finite loss, or left out, as marks at the upper edge. A mean over
// several steps stands at the middle of its steps, so that runs with other windows lie on each
// other. The vertical range leaves out what is above the 99th percentile, unless there are few
// points. Below, for each pair, B's difference from A in percent over equal windows.
// ConfigError when no run has a loss; UnsupportedError as make_png_canvas.
std::string draw_runs(std::span<const RunRecord> runs, std::span<const PairComparison> pairs,
                      PictureKind kind);

}  // namespace deltatrain::report
