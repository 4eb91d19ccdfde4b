// Megatron's training line, field by field, so that tools that read such logs read ours.
#pragma once

#include <cstdint>
#include <string>

namespace deltatrain::train {

struct LogLine {
  int64_t iteration = 0;
  int64_t total_iterations = 0;
  int64_t consumed_samples = 0;
  double milliseconds_per_iteration = 0;  // mean over the interval
  double tflops_per_device = 0;           // model FLOPs
  double learning_rate = 0;               // the next iteration's, as Megatron prints it
  int64_t global_batch_size = 0;
  double loss = 0;  // mean over the interval's steps that were not skipped
  double gradient_norm = 0;
  int64_t skipped_iterations = 0;  // in the interval
  int64_t nan_iterations = 0;
};

// " [2026-01-31 12:00:00.000000] iteration        1/    4768 | consumed samples: ..."; the loss is
// left out when it is not a positive number, as Megatron does.
std::string format_log_line(const LogLine& line, double unix_seconds);

}  // namespace deltatrain::train
