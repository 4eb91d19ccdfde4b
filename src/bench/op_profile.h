// Time per op of whatever runs through a context: its table is a copy with an observer.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "device/context.h"
#include "ops/op_table.h"

namespace deltatrain::bench {

class OpProfile final : public ops::OpObserver {
 public:
  // `context` must outlive the profile. Each op is waited for,
  // so ops do not overlap on a device that queues.
  explicit OpProfile(const Context& context);

  // The same context with the observed table.
  Context context() const;

  void begin(std::string_view op) override;
  void end(std::string_view op) override;
  void reset() { entries_.clear(); }

  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  double total_seconds() const;

 private:
  const Context& context_;
  ops::OpTable table_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace deltatrain::bench
