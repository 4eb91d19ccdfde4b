// Which devices this machine has, for tests that run where there is one.
#pragma once

#include <algorithm>

#include "backend/registry.h"

namespace deltatrain::test {

inline bool has_device(DeviceKind kind) {
  const auto kinds = backend::available_backends();
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

}  // namespace deltatrain::test
