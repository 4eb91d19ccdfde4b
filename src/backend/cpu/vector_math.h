// exp, sigmoid, softplus and their kin in f32 without
// branches, so that loops over them become vector code.
//
// Each is accurate to a few units in the last place over the whole range of f32 (tests/backend/cpu
// compares them with double): results that underflow go gradually to 0, overflow gives infinity,
// NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace deltatrain::backend::cpu {

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2, with exp(r) as its Taylor
// sum to r^7 (the rest is below 6e-9). 2^n is applied in two factors:
// a single one could not reach the subnormal results or infinity.
inline float exp_f32(float x) {
  constexpr float kRoundToInteger =
      12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;  // exact product with every n
  constexpr float kLn2Low = -2.12194440054690583e-4F;
  x = x < -104.0F ? -104.0F : x;
  x = x > 89.0F ? 89.0F : x;
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  float r = x - n * kLn2High;
  r = r - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * (r * r) + r;
  p = p + 1.0F;
  const int32_t whole = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRoundToInteger);
  const int32_t half = whole >> 1;
  const float scale_a = std::bit_cast<float>((half + 127) << 23);
  const float scale_b = std::bit_cast<float>((whole - half + 127) << 23);
  return p * scale_a * scale_b;
}

// 1 / (1 + exp(-x))
inline float sigmoid_f32(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

// x sigmoid(x); 0 rather than NaN at -infinity is not needed: activations are finite.
inline float silu_f32(float x) { return x / (1.0F + exp_f32(-x)); }

// log(1 + e) for 0 <= e <= 1, relatively accurate down to the smallest e:
// 2 atanh(s) with s = e / (2 + e) <= 1/3, summed to s^15.
inline float log1p_of_unit_f32(float e) {
  const float s = e / (2.0F + e);
  const float z = s * s;
  float p = 1.0F / 15.0F;
  p = p * z + 1.0F / 13.0F;
  p = p * z + 1.0F / 11.0F;
  p = p * z + 1.0F / 9.0F;
  p = p * z + 1.0F / 7.0F;
  p = p * z + 1.0F / 5.0F;
  p = p * z + 1.0F / 3.0F;
  p = p * z;
  return 2.0F * (p * s + s);
}

// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
inline float softplus_f32(float x) {
  const float positive = x > 0.0F ? x : 0.0F;
  const float magnitude = x > 0.0F ? x : -x;
  return positive + log1p_of_unit_f32(exp_f32(-magnitude));
}

}  // namespace deltatrain::backend::cpu
