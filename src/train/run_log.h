// What a run tells: metrics.jsonl for machines, Megatron's line in log.txt, progress for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "checkpoint/checkpoint.h"
#include "config/recipe_reader.h"
#include "model/training_step.h"
#include "train/run_folder.h"

namespace deltatrain::train {

struct StepReport {
  int64_t step = 0;
  int64_t consumed_samples = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;  // the one that this step used
  double seconds = 0;        // of the whole step
  double data_seconds = 0;   // of it, spent waiting for data
  bool skipped = false;      // not finite: nothing changed
};

class RunLog {
 public:
  RunLog(RunFolder& folder, const Recipe& recipe, Reporter& reporter);

  void begin(const ResolvedRecipe& resolved, const std::string& command, const std::string& device,
             int64_t num_parameters, const MemoryPlan& plan, int64_t total_bytes);
  // `meaning`: what was taken over and how, a line each; written into log.txt too.
  void resumed(int64_t step, int64_t consumed_samples, const std::string& checkpoint,
               const std::vector<std::string>& meaning);
  void step(const StepReport& report);
  void validation(int64_t step, double loss, int64_t num_tokens);
  void saved(const checkpoint::SaveReport& report, double stall_seconds);
  void end(int64_t step, const std::string& verdict);

 private:
  // Sums over the steps since the last line of log.txt.
  struct Interval {
    double loss = 0;
    double seconds = 0;
    int64_t steps = 0;
    int64_t skipped = 0;
  };

  RunFolder& folder_;
  const Recipe& recipe_;
  Reporter& reporter_;
  double flops_per_token_;
  Interval interval_;
};

}  // namespace deltatrain::train
