#include "train/log_line.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

namespace deltatrain::train {

std::string format_log_line(const LogLine& line, double unix_seconds) {
  const double whole = std::floor(unix_seconds);
  const auto seconds = static_cast<std::time_t>(whole);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
  std::string text =
      fmt::format(" [{}.{:06d}]", stamp, static_cast<int>((unix_seconds - whole) * 1e6));
  text += fmt::format(" iteration {:8d}/{:8d} |", line.iteration, line.total_iterations);
  text += fmt::format(" consumed samples: {:12d} |", line.consumed_samples);
  text +=
      fmt::format(" elapsed time per iteration (ms): {:.1f} |", line.milliseconds_per_iteration);
  text += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", line.tflops_per_device);
  text += fmt::format(" learning rate: {:.6E} |", line.learning_rate);
  text += fmt::format(" global batch size: {:5d} |", line.global_batch_size);
  if (line.loss > 0) text += fmt::format(" lm loss: {:.6E} |", line.loss);
  text += fmt::format(" loss scale: {:.1f} |", 1.0);
  text += fmt::format(" grad norm: {:.3f} |", line.gradient_norm);
  text += fmt::format(" number of skipped iterations: {:3d} |", line.skipped_iterations);
  text += fmt::format(" number of nan iterations: {:3d} |", line.nan_iterations);
  return text;
}

}  // namespace deltatrain::train
