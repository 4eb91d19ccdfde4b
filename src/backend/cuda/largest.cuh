// The largest of many numbers and where it stands, the first of equals.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/lanes.cuh"

namespace deltatrain::backend::cuda {

// A candidate for a row's largest element. NaN counts as larger than everything, so that it wins
// and is seen.
struct Largest {
  float value;
  int index;
};

__device__ __forceinline__ Largest larger(const Largest& a, const Largest& b) {
  const bool a_nan = isnan(a.value);
  if (a_nan || isnan(b.value)) return a_nan ? a : b;
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

__device__ __forceinline__ Largest largest_over_lanes(Largest best) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    best = larger(best, {__shfl_xor_sync(kAllLanes, best.value, distance, kWarpSize),
                         __shfl_xor_sync(kAllLanes, best.index, distance, kWarpSize)});
  }
  return best;
}

// Over a block of kThreads threads; the first warp gets the result.
template <int kThreads>
__device__ __forceinline__ Largest largest_over_block(Largest best,
                                                      Largest (&s_best)[kThreads / kWarpSize]) {
  best = largest_over_lanes(best);
  if (lane_id() == 0) s_best[warp_id()] = best;
  __syncthreads();
  if (warp_id() > 0) return best;
  return largest_over_lanes(s_best[lane_id() % (kThreads / kWarpSize)]);
}

// What row_argmax writes.
__device__ __forceinline__ int32_t index_or_none(const Largest& best) {
  return isfinite(best.value) ? best.index : -1;
}

}  // namespace deltatrain::backend::cuda
