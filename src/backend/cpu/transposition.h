// Transposition of a square of numbers in registers.
#pragma once

#include <utility>

#include "backend/cpu/lanes.h"

namespace deltatrain::backend::cpu {

// One round of it: swaps the kStep x kStep squares off
// the diagonal of every 2 kStep x 2 kStep square.
template <int kStep, int... kLane>
inline void swap_squares(Register (&rows)[kRegisterLanes], std::integer_sequence<int, kLane...>) {
  constexpr int kOther = static_cast<int>(kRegisterLanes);  // numbers of the lanes of y
#pragma GCC unroll 16
  for (int i = 0; i < kRegisterLanes; ++i) {
    if ((i & kStep) != 0) continue;
    const Register x = rows[i];
    const Register y = rows[i + kStep];
    rows[i] =
        __builtin_shufflevector(x, y, ((kLane & kStep) != 0 ? kOther + (kLane ^ kStep) : kLane)...);
    rows[i + kStep] =
        __builtin_shufflevector(x, y, ((kLane & kStep) != 0 ? kOther + kLane : (kLane ^ kStep))...);
  }
}

template <int kStep = 1>
inline void transpose_registers(Register (&rows)[kRegisterLanes]) {
  if constexpr (kStep < kRegisterLanes) {
    swap_squares<kStep>(rows, std::make_integer_sequence<int, kRegisterLanes>{});
    transpose_registers<2 * kStep>(rows);
  }
}

}  // namespace deltatrain::backend::cpu
