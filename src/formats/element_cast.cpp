#include "formats/element_cast.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace deltatrain::formats {

namespace {

template <class T>
T load(const void* from, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + index * static_cast<int64_t>(sizeof value),
              sizeof value);
  return value;
}

template <class T>
void store(void* to, int64_t index, T value) {
  std::memcpy(static_cast<char*>(to) + index * static_cast<int64_t>(sizeof value), &value,
              sizeof value);
}

// A storage type with its way to and from double or float.
struct F64 {
  using Bits = double;
  static double read(Bits bits) { return bits; }
  static Bits write(double value) { return value; }
};
struct F32 {
  using Bits = float;
  static float read(Bits bits) { return bits; }
  template <class T>
  static Bits write(T value) {
    return static_cast<float>(value);
  }
};
struct BF16 {
  using Bits = BFloat16;
  static float read(Bits bits) { return static_cast<float>(bits); }
  template <class T>
  static Bits write(T value) {
    return BFloat16(static_cast<float>(value));
  }
};
struct F16 {
  using Bits = uint16_t;
  static float read(Bits bits) { return f16_to_f32(bits); }
  template <class T>
  static Bits write(T value) {
    return f32_to_f16(static_cast<float>(value));
  }
};

template <class From, class To>
void cast(const void* from, void* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    store<typename To::Bits>(to, i, To::write(From::read(load<typename From::Bits>(from, i))));
  }
}

template <class From>
void cast_from(const void* from, DType to_dtype, void* to, int64_t count) {
  switch (to_dtype) {
    case DType::kF64:
      return cast<From, F64>(from, to, count);
    case DType::kF32:
      return cast<From, F32>(from, to, count);
    case DType::kBF16:
      return cast<From, BF16>(from, to, count);
    case DType::kF16:
      return cast<From, F16>(from, to, count);
    default:
      DELTATRAIN_CHECK(false, std::string(dtype_name(to_dtype)));
  }
}

}  // namespace

bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

void cast_elements(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count) {
  if (count == 0) return;
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count * dtype_bytes(from_dtype)));
    return;
  }
  switch (from_dtype) {
    case DType::kF64:
      return cast_from<F64>(from, to_dtype, to, count);
    case DType::kF32:
      return cast_from<F32>(from, to_dtype, to, count);
    case DType::kBF16:
      return cast_from<BF16>(from, to_dtype, to, count);
    case DType::kF16:
      return cast_from<F16>(from, to_dtype, to, count);
    default:
      DELTATRAIN_CHECK(false, std::string(dtype_name(from_dtype)));
  }
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t fraction = bits & 0x3ffU;
  uint32_t word;
  if (exponent == 0x1fU) {
    word = sign | 0x7f800000U | (fraction << 13);
  } else if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  } else {
    word = sign | ((exponent + 112U) << 23) | (fraction << 13);
  }
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

uint16_t f32_to_f16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000U);
  const uint32_t magnitude = word & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x477ff000U)
    return static_cast<uint16_t>(sign | 0x7c00U);  // 65520 and up: infinity
  if (magnitude < 0x38800000U) {
    // Below the smallest normal number 2^-14: whole multiples of 2^-24, rounded to even.
    float positive;
    std::memcpy(&positive, &magnitude, sizeof positive);
    const float units = std::nearbyint(std::ldexp(positive, 24));
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(units));
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

}  // namespace deltatrain::formats
