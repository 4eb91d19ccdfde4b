// Chunk numbers of packed sequences of unequal lengths, from the offsets on the device.
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kThreads = 512;

// Grid: one block. A pass numbers kThreads sequences; each thread then enters its sequence's
// chunks.
__global__ void __launch_bounds__(kThreads)
    gated_delta_rule_map_chunks_kernel(const int32_t* offsets, int S, int32_t* first_chunk,
                                       int32_t* chunk_sequence) {
  auto* s_warp_total = dynamic_shared<int>();  // [kThreads / kWarpSize]
  const int thread = static_cast<int>(threadIdx.x);
  int before = 0;
  for (int first = 0; first < S; first += kThreads) {
    const int sequence = first + thread;
    const int count =
        sequence < S ? (offsets[sequence + 1] - offsets[sequence] + kChunk - 1) / kChunk : 0;
    int sum = count;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, distance, kWarpSize);
      if (lane_id() >= distance) sum += other;
    }
    if (lane_id() == kWarpSize - 1) s_warp_total[warp_id()] = sum;
    __syncthreads();
    int total = 0;
    for (int warp = 0; warp < kThreads / kWarpSize; ++warp) {
      if (warp < warp_id()) sum += s_warp_total[warp];
      total += s_warp_total[warp];
    }
    if (sequence < S) {
      const int start = before + sum - count;
      first_chunk[sequence] = start;
      for (int i = 0; i < count; ++i) chunk_sequence[start + i] = sequence;
    }
    before += total;
    __syncthreads();
  }
  if (thread == 0) first_chunk[S] = before;
}

}  // namespace

void map_chunks(CudaDevice& device, const int32_t* offsets, int64_t S, int32_t* first_chunk,
                int32_t* chunk_sequence) {
  launch(device, "gated_delta_rule_map_chunks_kernel", gated_delta_rule_map_chunks_kernel, 1,
         kThreads, kThreads / kWarpSize * sizeof(int), offsets, static_cast<int>(S), first_chunk,
         chunk_sequence);
}

}  // namespace deltatrain::backend::cuda::delta
