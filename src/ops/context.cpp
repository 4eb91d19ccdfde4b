#include "ops/context.h"

#include <algorithm>

namespace deltatrain::ops {

int64_t Sequences::max_length() const {
  int64_t longest = 0;
  for (int64_t s = 0; s < num(); ++s) longest = std::max(longest, length(s));
  return longest;
}

}  // namespace deltatrain::ops
