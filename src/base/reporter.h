// How library code speaks to people: through an object of the caller's, never by printing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deltatrain {

class Reporter {
 public:
  virtual ~Reporter() = default;

  // One line for people, shown as "[area] text".
  virtual void message(std::string_view area, const std::string& text) = 0;

  // Something that the user should look at although the work goes on.
  virtual void warning(std::string_view area, const std::string& text) = 0;

  // Work of `total` units (0: unknown) of which `done` are finished; called often, shown rarely.
  // `detail` is a short text beside the bar, such as the current loss.
  virtual void progress(std::string_view task, int64_t done, int64_t total, std::string_view unit,
                        std::string_view detail) = 0;
};

// Drops everything.
Reporter& silent_reporter();

}  // namespace deltatrain
