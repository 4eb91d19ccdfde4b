// Conversion of stored elements between floating-point types, a block at a time.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace deltatrain::formats {

bool is_floating(DType dtype);  // f64, f32, bf16, f16

// Converts `count` elements. Both addresses may be unaligned; the ranges must not overlap. Equal
// dtypes are copied; otherwise both must be floating, which the caller has checked. To a narrower
// type the value is rounded to nearest, ties to even (f64 to bf16 and f16 through f32); NaN stays
// NaN.
void cast_elements(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count);

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

}  // namespace deltatrain::formats
