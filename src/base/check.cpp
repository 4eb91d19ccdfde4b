#include "base/check.h"

namespace deltatrain::internal {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::string name = file;
  if (const size_t at = name.rfind("/src/"); at != std::string::npos) name = name.substr(at + 5);
  throw InternalError(name + ":" + std::to_string(line) + ": " + condition +
                      " does not hold: " + detail);
}

}  // namespace deltatrain::internal
