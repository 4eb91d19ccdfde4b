// Threads that run together: how many, and sums and maxima over some of them. The only place that
// knows the number; every reduction has a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace deltatrain::backend::cuda {

inline constexpr int kWarpSize = 32;

using LaneMask = uint32_t;
inline constexpr LaneMask kAllLanes = ~LaneMask{0};

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / kWarpSize; }
__device__ __forceinline__ void sync_warp() { __syncwarp(kAllLanes); }
// The first lane's value, so that the compiler knows that all lanes have the same.
__device__ __forceinline__ int same_in_warp(int value) {
  return __shfl_sync(kAllLanes, value, 0, kWarpSize);
}

// Over each aligned tile of kLanes neighbouring lanes; every lane of the warp must take part, and
// every lane gets the result of its tile.
template <int kLanes, class T>
__device__ __forceinline__ T sum_over_lanes(T value) {
  static_assert(kLanes >= 1 && kLanes <= kWarpSize && (kLanes & (kLanes - 1)) == 0);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance, kWarpSize);
  }
  return value;
}

template <int kLanes>
__device__ __forceinline__ float max_over_lanes(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance, kWarpSize));
  }
  return value;
}

// Over a block of kThreads threads, all of which must take part; every thread gets the result.
// `s_scratch` holds kThreads / kWarpSize values and may be used again at once.
template <int kThreads, class T>
__device__ __forceinline__ T sum_over_block(T value, T* s_scratch) {
  constexpr int kWarps = kThreads / kWarpSize;
  static_assert(kThreads % kWarpSize == 0 && kWarps <= kWarpSize);
  value = sum_over_lanes<kWarpSize>(value);
  if (lane_id() == 0) s_scratch[warp_id()] = value;
  __syncthreads();
  T total = s_scratch[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) total += s_scratch[warp];
  __syncthreads();
  return total;
}

}  // namespace deltatrain::backend::cuda
