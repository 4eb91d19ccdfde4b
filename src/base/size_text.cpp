#include "base/size_text.h"

#include <array>
#include <cstdio>

namespace deltatrain {

std::string size_text(int64_t bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
  const auto size = static_cast<double>(bytes);
  std::array<char, 32> text{};
  if (bytes < kGiB) {
    std::snprintf(text.data(), text.size(), "%.2f MiB", size / kMiB);
  } else {
    std::snprintf(text.data(), text.size(), "%.2f GiB", size / kGiB);
  }
  return text.data();
}

}  // namespace deltatrain
