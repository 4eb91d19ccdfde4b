// Fresh random numbers in device memory, made there: tensors of gigabytes take milliseconds.
#pragma once

#include <cstdint>

#include "device/context.h"
#include "tensor/tensor.h"

namespace deltatrain::test {

// Every element of the tensor's memory from the first to the last one, gaps of strided rows
// included: roughly normal with this deviation (bf16, f32).
void fill_normal(const Context& context, const Tensor& tensor, double deviation, uint64_t seed);

// i32 in [0, bound): id = floor(bound u^power), so that a power above 1 makes small ids frequent,
// as in text.
void fill_ids(const Context& context, const Tensor& ids, int64_t bound, double power,
              uint64_t seed);

// f32 in [low, high).
void fill_uniform(const Context& context, const Tensor& tensor, double low, double high,
                  uint64_t seed);

}  // namespace deltatrain::test
