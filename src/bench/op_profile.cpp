#include "bench/op_profile.h"

namespace deltatrain::bench {

OpProfile::OpProfile(const Context& context) : context_(context), table_(*context.table) {
  table_.observer = this;
}

Context OpProfile::context() const {
  Context observed = context_;
  observed.table = &table_;
  return observed;
}

void OpProfile::begin(std::string_view) {
  context_.device->synchronize();
  start_ = std::chrono::steady_clock::now();
}

void OpProfile::end(std::string_view op) {
  context_.device->synchronize();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  auto at = entries_.find(op);
  if (at == entries_.end()) at = entries_.emplace(std::string(op), Entry{}).first;
  ++at->second.calls;
  at->second.seconds += seconds;
}

double OpProfile::total_seconds() const {
  double sum = 0;
  for (const auto& [op, entry] : entries_) sum += entry.seconds;
  return sum;
}

}  // namespace deltatrain::bench
