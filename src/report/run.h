// A training run as its log tells it, whichever program wrote the log.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace deltatrain::report {

enum class RunFormat : uint8_t {
  kMetrics,         // metrics.jsonl of this program
  kMegatron,        // Megatron's training line as it is
  kMegatronPrimus,  // the rewritten line, "tokens/s/GPU inst/harmonic mean: A/B"
  kMegatronTokens,  // the older rewrite, "tokens per GPU (tokens/s/GPU): A"
  kTrainerState,    // trainer_state.json of Hugging Face's trainer
  kTrainerLog,      // trainer_log.jsonl: current_steps, loss
  kTrainerConsole,  // what that trainer prints: {'loss': 9.6, 'learning_rate': 2e-06, 'epoch': 0.01}
};

// For people: "Megatron log".
const char* format_name(RunFormat format);

// The mean of the losses of the steps after `begin` up to and with `end`, in nats per token.
struct LossWindow {
  int64_t begin = 0;
  int64_t end = 0;
  double loss = 0;  // NaN: none was logged, or it was not finite
  int64_t counted =
      0;  // steps that the mean is over: fewer than end - begin where some were skipped
};

struct MetricPoint {
  int64_t step = 0;
  double value = 0;
};
using Series = std::vector<MetricPoint>;  // ascending steps, finite values

enum class RunEventKind : uint8_t {
  kNonFinite,  // loss or gradient norm was not finite
  kSkipped,    // the step was left out
  kSpike,      // report/spikes.h
  kResume,     // the run went on from this step
};
struct RunEvent {
  int64_t step = 0;
  RunEventKind kind = RunEventKind::kNonFinite;
};

struct TextSample {
  int64_t step = 0;
  std::string prompt;
  std::string text;
};

struct RunRecord {
  std::string name;    // of the folder, or of the file
  std::string source;  // the file that was read
  RunFormat format = RunFormat::kMetrics;
  double divisor = 1;  // losses were divided by it

  std::vector<LossWindow> losses;  // ascending ends; one may lie inside the next (Megatron's first)
  Series validation;
  Series learning_rate;                        // at the step that used it
  Series gradient_norm;                        // before clipping
  Series step_seconds;                         // mean over the window that ends there
  Series tokens_per_second;                    // per device
  Series utilization;                          // model FLOPs/s over the device's peak; may be empty
  std::map<std::string, Series> part_seconds;  // by part of the step; may be empty
  Series device_bytes, host_bytes, clock_mhz, power_watts;
  std::vector<RunEvent> events;  // ascending steps
  std::vector<TextSample> samples;

  std::optional<int64_t> total_steps;   // that the run was to have
  std::optional<int64_t> warmup_steps;  // until the learning rate reached its largest value
  std::optional<double> wall_seconds;
  int64_t ignored_lines = 0;       // cut off or damaged, left out
  std::vector<std::string> notes;  // what the reader had to assume
};

}  // namespace deltatrain::report
