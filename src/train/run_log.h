// What a run tells: metrics.jsonl for machines, Megatron's line in log.txt, event files for
// TensorBoard, progress for people.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/reporter.h"
#include "config/recipe_reader.h"
#include "formats/event_file.h"
#include "model/training_step.h"
#include "report/spikes.h"
#include "train/gpu_monitor.h"
#include "train/run_folder.h"
#include "train/saver.h"

namespace deltatrain::train {

struct StepReport {
  int64_t step = 0;
  int64_t consumed_samples = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;  // the one that this step used
  double next_learning_rate = 0;
  double seconds = 0;                                        // of the whole step
  double data_seconds = 0;                                   // of it, spent waiting for data
  bool skipped = false;                                      // not finite: nothing changed
  std::vector<std::pair<std::string, double>> part_seconds;  // of the device: data, forward, ...
};

struct ResumeReport {
  int64_t step = 0;
  int64_t consumed_samples = 0;
  std::string checkpoint;
  std::vector<std::string> meaning;  // what was taken over and how, a line each; also for log.txt
  int64_t read_bytes = 0;
  double read_seconds = 0;
};

// What the run computes on, for shares of what is possible.
struct RunDevice {
  std::string description;
  std::string pci_bus_id;            // of a card; empty: none, or not known
  std::optional<double> peak_flops;  // train/device_peak.h
  int num_ranks = 1;                 // devices of the run
};

// Version and commit of this program: what ranks compare.
std::string program_version();

class RunLog {
 public:
  RunLog(RunFolder& folder, const Recipe& recipe, Reporter& reporter);

  void begin(const ResolvedRecipe& resolved, const std::string& command, const RunDevice& device,
             int64_t num_parameters, const MemoryPlan& plan, int64_t total_bytes);
  void resumed(const ResumeReport& report);
  void step(const StepReport& report);
  void validation(int64_t step, double loss, int64_t num_tokens, double seconds);
  void sample(int64_t step, const std::string& prompt, const std::string& text, double seconds);
  void saved(const Saver::Finished& save);
  void end(int64_t step, const std::string& verdict);

 private:
  // What Megatron's line is a mean of. A process's first line does not start the means anew, but
  // the time: the first step may load kernels and choose algorithms.
  struct Interval {
    double loss = 0;
    int64_t steps = 0;
    int64_t skipped = 0;
    double seconds = 0;
    int64_t timed_steps = 0;
  };

  // Time that logging takes goes to logging_seconds_.
  class Timed;

  void add_line(const StepReport& report);
  void add_resources(int64_t step);
  formats::EventFile* events(double unix_seconds);

  RunFolder& folder_;
  const Recipe& recipe_;
  Reporter& reporter_;
  double flops_per_token_;
  RunDevice device_;
  Interval interval_;
  bool has_logged_ = false;  // a line in this process
  report::SpikeDetector spikes_;
  std::unique_ptr<GpuMonitor> gpu_;
  std::chrono::steady_clock::time_point resources_read_;
  std::unique_ptr<formats::EventFile> events_;  // from the first step on
  bool has_events_ = false;
  int64_t first_step_ = 0;  // of a resumed run
  double logging_seconds_ = 0;
  double step_seconds_ = 0;
};

}  // namespace deltatrain::train
