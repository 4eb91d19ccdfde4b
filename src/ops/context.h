// Types shared by all ops.
#pragma once

#include <cstdint>
#include <span>

#include "device/context.h"
#include "tensor/tensor.h"

namespace deltatrain::ops {

// What an op does with a gradient that is already there. Parameter gradients accumulate, activation
// gradients overwrite; anything else is visible in the call.
enum class GradMode : uint8_t { kOverwrite, kAccumulate };

// Sequences laid end to end in R rows: sequence s owns rows [offsets[s], offsets[s + 1]). A batch of B rows
// of T tokens is B sequences of equal length; packed documents are sequences too; a decoding step is S
// sequences of length 1. State, convolution history and attention never cross a border.
struct Sequences {
  std::span<const int32_t> offsets;  // host, num + 1 entries, offsets[0] = 0, offsets[num] = R
  Tensor device_offsets;             // i32 [num + 1], the same numbers in the device's memory

  int64_t num() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t num_rows() const { return offsets.back(); }
  int64_t begin(int64_t s) const { return offsets[static_cast<size_t>(s)]; }
  int64_t end(int64_t s) const { return offsets[static_cast<size_t>(s) + 1]; }
  int64_t length(int64_t s) const { return end(s) - begin(s); }
  int64_t max_length() const;
};

}  // namespace deltatrain::ops
