// Which sequence a row belongs to.
#pragma once

#include <cstdint>

namespace deltatrain::backend::cuda {

// The s with offsets[s] <= row < offsets[s + 1], for 0 <= row < offsets[num_sequences].
__device__ __forceinline__ int find_sequence(const int32_t* offsets, int num_sequences,
                                             int64_t row) {
  int low = 0;
  int high = num_sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace deltatrain::backend::cuda
