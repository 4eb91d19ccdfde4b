// Megatron's training lines in the text of a log.
//
// Three forms are read, as Megatron prints them and as Primus rewrites them:
//
//   ... iteration      100/    4768 | consumed samples:  102400 | elapsed time per iteration (ms): 1450.4 |
//     throughput per GPU (TFLOP/s/GPU): 633.7 | learning rate: 1.0E-04 | ... | lm loss: 9.601000E+00 | ...
//   ... | elapsed time per iteration (ms): 1460.8/1450.4 | compute per GPU (TFLOP/s/GPU): 633.7 (avg 634.0) |
//     tokens/s/GPU inst/harmonic mean: 180743.2/181000.0 | ...
//   ... | TFLOP/s/GPU: 633.7 | tokens per GPU (tokens/s/GPU): 180743.2 | ...
//
// Colour codes, text before the line, lines broken by a terminal, and a missing loss (not a
// positive number, so Megatron leaves it out) are all right.
//
// A line is the mean over the iterations since the line before. The first line of a process is of
// its first iteration alone and does not start the means anew: the next one spans that iteration
// too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "report/run.h"

namespace deltatrain::report {

struct MegatronRecord {
  int64_t iteration = 0;
  int64_t total_iterations = 0;
  std::optional<int64_t> global_batch_size;
  std::optional<double> unix_seconds;       // of the stamp, taken as UTC
  std::optional<double> milliseconds;       // per iteration, mean over the interval
  std::optional<double> tokens_per_second;  // per GPU
  std::optional<double> learning_rate;      // of the next iteration
  std::optional<double> loss;
  std::optional<double> gradient_norm;
  int64_t skipped = 0;
  int64_t nan = 0;
  RunFormat form = RunFormat::kMegatron;
};

// In the order of the text; empty where there is none.
std::vector<MegatronRecord> find_megatron_records(std::string_view text);
// Losses of "validation loss at iteration N | lm loss value: X", by iteration.
Series find_megatron_validation(std::string_view text);

// None where the text has no training line. tokens_per_iteration_and_gpu: for forms without
// tokens/s, or 0.
std::optional<RunRecord> read_megatron_log(const std::filesystem::path& file, std::string_view text,
                                           double divisor, double tokens_per_iteration_and_gpu);

}  // namespace deltatrain::report
