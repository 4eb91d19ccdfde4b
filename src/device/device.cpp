#include "device/context.h"

namespace deltatrain {

static_assert(std::is_copy_constructible_v<Context>);

std::unique_ptr<Recording> Device::record(const std::function<void()>&) { return nullptr; }

void Device::mark() { marks_.push_back(std::chrono::steady_clock::now()); }

std::vector<double> Device::take_marks() {
  std::vector<double> seconds;
  seconds.reserve(marks_.size());
  for (const auto& moment : marks_)
    seconds.push_back(std::chrono::duration<double>(moment - marks_.front()).count());
  marks_.clear();
  return seconds;
}

}  // namespace deltatrain
