// What the readers of the different logs share: later lines replace earlier ones of the same
// steps, as they do when a run is resumed from a checkpoint before its last line.
#pragma once

#include <cstdint>
#include <filesystem>

#include "report/run.h"

namespace deltatrain::report {

// Steps of a log are at most this: sums and differences of them cannot overflow.
constexpr int64_t kLargestStep = int64_t{1} << 50;
constexpr bool is_step(int64_t step) { return step >= 0 && step <= kLargestStep; }

class RunBuilder {
 public:
  RunBuilder(const std::filesystem::path& file, RunFormat format, double divisor);

  // Forgets what was said of `step` and later ones.
  void forget_from(int64_t step);
  // Ignored where `value` is not finite; replaces a point of the same step.
  static void put(Series& series, int64_t step, double value);
  // Divides by the divisor. A loss that is not finite is an event.
  void put_loss(int64_t begin, int64_t end, double loss, int64_t counted);
  void put_event(int64_t step, RunEventKind kind);  // ascending steps
  // The run goes on with `step`: what was said of it and of later ones is forgotten.
  void resume_at(int64_t step);

  RunRecord& run() { return run_; }
  double divisor() const { return run_.divisor; }
  // Adds what follows from the rest: warm-up, spikes of the losses, events in order.
  RunRecord finish();

 private:
  RunRecord run_;
  std::vector<RunEvent> resumes_;
};

}  // namespace deltatrain::report
