// Asking for memory before it is needed, where the processor does not see the pattern itself.
#pragma once

#include <cstdint>

namespace deltatrain::backend::cpu {

// `count` f32 numbers; addresses past the end of a block of memory do no harm.
inline void prefetch(const float* from, int64_t count) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, 0, 3);
}

}  // namespace deltatrain::backend::cpu
