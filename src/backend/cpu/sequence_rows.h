// Finding the sequence that a row belongs to.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/context.h"

namespace deltatrain::backend::cpu {

inline int64_t sequence_of_row(const ops::Sequences& sequences, int64_t row) {
  const auto after = std::upper_bound(sequences.offsets.begin(), sequences.offsets.end(),
                                      static_cast<int32_t>(row));
  return after - sequences.offsets.begin() - 1;
}

}  // namespace deltatrain::backend::cpu
