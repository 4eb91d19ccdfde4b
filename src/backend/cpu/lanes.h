// Vectors of 16 f32 lanes; on machines with narrower registers the compiler splits them.
#pragma once

#include <cstdint>

namespace deltatrain::backend::cpu {

inline constexpr int64_t kLanes = 16;

typedef float Lanes __attribute__((vector_size(64)));
typedef float UnalignedLanes __attribute__((vector_size(64), aligned(4), may_alias));

inline Lanes load(const float* p) { return *reinterpret_cast<const UnalignedLanes*>(p); }
inline void store(float* p, Lanes x) { *reinterpret_cast<UnalignedLanes*>(p) = x; }
inline Lanes broadcast(float x) { return Lanes{} + x; }

// The sum of all lanes, in halves.
inline float sum_of(Lanes x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace deltatrain::backend::cpu
