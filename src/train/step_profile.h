// Times of the parts, or of parts and ops, of a training step, without stopping the device between
// them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/context.h"
#include "ops/op_table.h"

namespace deltatrain::train {

class StepProfile final : public ops::OpObserver {
 public:
  // `context` must outlive the profile.
  explicit StepProfile(const Context& context);
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // The same context, whose ops are observed between start() and finish().
  Context context() const;

  // kParts: one mark a part, little enough for every step.
  enum class Detail : uint8_t { kParts, kOps };
  void start(Detail detail = Detail::kOps);
  void finish();  // waits for the device

  void part(std::string_view name) override;
  void begin(std::string_view op) override;
  void end(std::string_view op) override;

  // One stretch of the step: an op, or the device idle or copying ("between ops") where `op` is "".
  struct Span {
    std::string part;
    std::string op;
    double begin_seconds = 0;  // from the start of the step
    double end_seconds = 0;
  };
  const std::vector<Span>& spans() const { return spans_; }
  double total_seconds() const;
  // Sums by part, in order of first appearance.
  std::vector<std::pair<std::string, double>> part_seconds() const;

  // Markdown: a table of parts and one of ops, slowest first, with calls, milliseconds and shares.
  std::string tables() const;
  // Trace events as chrome://tracing and Perfetto read them; `rank` is the process number.
  std::string chrome_trace(int rank) const;

 private:
  struct Mark {
    std::string part;
    std::string op;
  };
  void mark(std::string_view op);

  const Context& context_;
  ops::OpTable table_;
  bool running_ = false;
  Detail detail_ = Detail::kOps;
  std::string part_;
  std::vector<Mark> marks_;  // what follows each mark of the device
  std::vector<Span> spans_;
};

// One trace with the events of what chrome_trace() made for ranks 0, 1, ..., each a process of its
// own, from the start of its own step; "" stands for a rank that gave none.
std::string join_traces(const std::vector<std::string>& traces);

}  // namespace deltatrain::train
