// Cumulative gates where every key channel has its own decay (KDA).
#pragma once

#include "backend/cuda/gated_delta_rule/tiles.cuh"

namespace deltatrain::backend::cuda::delta {

// How a block of kThreads shares the work: a thread takes two neighbouring channels of kRows
// neighbouring rows.
template <int K, int kThreads>
struct GateParts {
  static constexpr int kPairs = K / 2;
  static_assert(kThreads % kPairs == 0);
  static constexpr int kParts = kThreads / kPairs;
  static constexpr int kRows = kChunk / kParts;
  static_assert(kParts * kRows == kChunk);
};

// From natural-log gates [64, K] in a FloatTile: calls visit(row, channel, gate, sum, total) for
// each row and pair of channels of this thread, with the gate, its inclusive sum within the chunk
// and the chunk's total in base 2. All threads take part; visit may overwrite the pair of gates it
// stands for. `s_totals` is scratch [kParts, K]; a barrier must separate the call from an earlier
// use of it.
template <int K, int kThreads, class Visit>
__device__ __forceinline__ void cumulate_gates(const float* s_gates, float* s_totals, Visit visit) {
  using Parts = GateParts<K, kThreads>;
  const int channel = 2 * (static_cast<int>(threadIdx.x) % Parts::kPairs);
  const int part = static_cast<int>(threadIdx.x) / Parts::kPairs;
  const int first = part * Parts::kRows;
  float2 gates[Parts::kRows];
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < Parts::kRows; ++i) {
    const float2 gate = load_pair(s_gates + FloatTile<K>::at(first + i, channel));
    gates[i] = make_float2(gate.x * kLog2E, gate.y * kLog2E);
    sum.x += gates[i].x;
    sum.y += gates[i].y;
  }
  *reinterpret_cast<float2*>(s_totals + part * K + channel) = sum;
  __syncthreads();
  float2 before = make_float2(0, 0);
  float2 total = make_float2(0, 0);
#pragma unroll
  for (int other = 0; other < Parts::kParts; ++other) {
    const float2 value = load_pair(s_totals + other * K + channel);
    if (other == part) before = total;
    total.x += value.x;
    total.y += value.y;
  }
#pragma unroll
  for (int i = 0; i < Parts::kRows; ++i) {
    before.x += gates[i].x;
    before.y += gates[i].y;
    // The last row is the total itself, not a sum in another order.
    const bool is_last = part == Parts::kParts - 1 && i == Parts::kRows - 1;
    visit(first + i, channel, gates[i], is_last ? total : before, total);
  }
}

}  // namespace deltatrain::backend::cuda::delta
