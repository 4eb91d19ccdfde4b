#include "base/reporter.h"

namespace deltatrain {

namespace {
class SilentReporter final : public Reporter {
 public:
  void message(std::string_view, const std::string&) override {}
  void warning(std::string_view, const std::string&) override {}
  void progress(std::string_view, int64_t, int64_t, std::string_view, std::string_view) override {}
};
}  // namespace

Reporter& silent_reporter() {
  static SilentReporter reporter;  // stateless
  return reporter;
}

}  // namespace deltatrain
