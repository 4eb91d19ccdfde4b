#include "train/step_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace deltatrain::train {

namespace {

struct Sum {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
};

// Sums by name in order of first appearance.
void add(std::vector<Sum>& sums, const std::string& name, double seconds) {
  auto at =
      std::find_if(sums.begin(), sums.end(), [&](const Sum& sum) { return sum.name == name; });
  if (at == sums.end()) at = sums.insert(at, Sum{.name = name});
  ++at->calls;
  at->seconds += seconds;
}

}  // namespace

StepProfile::StepProfile(const Context& context) : context_(context), table_(*context.table) {
  table_.observer = this;
}

Context StepProfile::context() const {
  Context observed = context_;
  observed.table = &table_;
  return observed;
}

void StepProfile::mark(std::string_view op) {
  if (!running_) return;
  context_.device->mark();
  marks_.push_back({part_, std::string(op)});
}

void StepProfile::start(Detail detail) {
  detail_ = detail;
  context_.device->take_marks();
  marks_.clear();
  spans_.clear();
  part_ = "data";
  running_ = true;
  mark("");
}

void StepProfile::finish() {
  DELTATRAIN_CHECK(running_, "finish() without start()");
  mark("");
  running_ = false;
  const std::vector<double> seconds = context_.device->take_marks();
  DELTATRAIN_CHECK(seconds.size() == marks_.size(), "marks of somebody else");
  for (size_t i = 0; i + 1 < marks_.size(); ++i)
    spans_.push_back({marks_[i].part, marks_[i].op, seconds[i], seconds[i + 1]});
}

void StepProfile::part(std::string_view name) {
  part_ = name;
  mark("");
}
void StepProfile::begin(std::string_view op) {
  if (detail_ == Detail::kOps) mark(op);
}
void StepProfile::end(std::string_view) {
  if (detail_ == Detail::kOps) mark("");
}

double StepProfile::total_seconds() const {
  return spans_.empty() ? 0 : spans_.back().end_seconds - spans_.front().begin_seconds;
}

std::vector<std::pair<std::string, double>> StepProfile::part_seconds() const {
  std::vector<Sum> sums;
  for (const Span& span : spans_) add(sums, span.part, span.end_seconds - span.begin_seconds);
  std::vector<std::pair<std::string, double>> parts;
  for (Sum& sum : sums) parts.emplace_back(std::move(sum.name), sum.seconds);
  return parts;
}

std::string StepProfile::tables() const {
  std::vector<Sum> parts, ops;
  for (const Span& span : spans_) {
    const double seconds = span.end_seconds - span.begin_seconds;
    add(parts, span.part, seconds);
    add(ops, span.op.empty() ? "between ops" : span.op, seconds);
  }
  std::stable_sort(ops.begin(), ops.end(),
                   [](const Sum& a, const Sum& b) { return a.seconds > b.seconds; });
  const double total = std::max(total_seconds(), 1e-12);
  std::string text = "| part | ms | share |\n|---|---|---|\n";
  for (const Sum& sum : parts) {
    text += fmt::format("| {} | {:.3f} | {:.1f} % |\n", sum.name, 1e3 * sum.seconds,
                        100 * sum.seconds / total);
  }
  text += fmt::format("| step | {:.3f} | 100 % |\n\n", 1e3 * total);
  text += "| op | calls | ms | share |\n|---|---|---|---|\n";
  for (const Sum& sum : ops) {
    text += fmt::format("| {} | {} | {:.3f} | {:.1f} % |\n", sum.name, sum.calls, 1e3 * sum.seconds,
                        100 * sum.seconds / total);
  }
  return text;
}

std::string StepProfile::chrome_trace(int rank) const {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  const auto name_thread = [&](int thread, const char* name) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", rank},
                      {"tid", thread},
                      {"args", {{"name", name}}}});
  };
  name_thread(0, "parts");
  name_thread(1, "ops");
  const auto add_event = [&](int thread, const std::string& name, double begin, double end) {
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"pid", rank},
                      {"tid", thread},
                      {"ts", 1e6 * begin},
                      {"dur", 1e6 * (end - begin)}});
  };
  for (size_t i = 0; i < spans_.size();) {
    size_t last = i;
    while (last + 1 < spans_.size() && spans_[last + 1].part == spans_[i].part) ++last;
    add_event(0, spans_[i].part, spans_[i].begin_seconds, spans_[last].end_seconds);
    i = last + 1;
  }
  for (const Span& span : spans_) {
    if (!span.op.empty()) add_event(1, span.op, span.begin_seconds, span.end_seconds);
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

std::string join_traces(const std::vector<std::string>& traces) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    if (traces[rank].empty()) continue;
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", rank},
                      {"args", {{"name", fmt::format("rank {}", rank)}}}});
    Json trace = Json::parse(traces[rank]);
    for (Json& event : trace["traceEvents"]) events.push_back(std::move(event));
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace deltatrain::train
