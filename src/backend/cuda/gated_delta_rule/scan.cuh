// What the two scans over chunks share: shared memory, loads, and the tiles that a chunk's products
// need.
//
// One block scans one (sequence, value head). A warp owns 16 columns of the V axis for everything:
// state, values, outputs. Held transposed, [16 of V, K] and [16 of V, 64 rows], these are left
// operands straight from accumulators, and all right operands (q, k, F, P) are shared by the warps,
// so that no column crosses from one warp to another.
#pragma once

#include <string>

#include "backend/cuda/gated_delta_rule/channel_gates.cuh"
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/gated_delta_rule/tiles.cuh"
#include "base/error.h"

namespace deltatrain::backend::cuda::delta {

using SmallTile = Tile<kTile>;

template <int K, int V, GateKind kKind>
struct ScanShape {
  static constexpr int kWarps = V / kTile;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr bool kChannel = kKind == GateKind::kChannel;
  static constexpr int kGateFloats = kChannel ? kChunk : kGateRows * kChunk;
};

// The shapes that both scans exist for: chunks in shared memory at once, blocks per multiprocessor.
template <int K_, int V_, GateKind kKind_, int kStages_, int kBlocksPerProcessor_>
struct ScanConfig {
  static constexpr int K = K_;
  static constexpr int V = V_;
  static constexpr GateKind kKind = kKind_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerProcessor = kBlocksPerProcessor_;
};

template <class Function>
auto with_scan_config(GateKind kind, int64_t K, int64_t V, Function function) {
  constexpr GateKind kScalar = GateKind::kScalar;
  constexpr GateKind kChannel = GateKind::kChannel;
  if (kind == kScalar) {
    if (K == 16 && V == 16) return function(ScanConfig<16, 16, kScalar, 1, 1>{});
    if (K == 16 && V == 32) return function(ScanConfig<16, 32, kScalar, 1, 1>{});
    if (K == 64 && V == 64) return function(ScanConfig<64, 64, kScalar, 2, 2>{});
    if (K == 64 && V == 128) return function(ScanConfig<64, 128, kScalar, 1, 2>{});
    if (K == 128 && V == 128) return function(ScanConfig<128, 128, kScalar, 1, 1>{});
  } else {
    if (K == 16 && V == 16) return function(ScanConfig<16, 16, kChannel, 1, 1>{});
    if (K == 16 && V == 32) return function(ScanConfig<16, 32, kChannel, 1, 1>{});
    if (K == 32 && V == 64) return function(ScanConfig<32, 64, kChannel, 2, 2>{});
    if (K == 64 && V == 64) return function(ScanConfig<64, 64, kChannel, 1, 3>{});
    if (K == 128 && V == 128) return function(ScanConfig<128, 128, kChannel, 1, 1>{});
  }
  throw InternalError("gated_delta_rule: no scan for heads of " + std::to_string(K) + " x " +
                      std::to_string(V));
}

// One chunk's inputs as they are in global memory.
template <int K, int V, GateKind kKind>
struct ScanInputs;

template <int K, int V>
struct ScanInputs<K, V, GateKind::kScalar> {
  Bf16 q[kChunk * K];
  Bf16 k[kChunk * K];
  Bf16 v[kChunk * V];  // backward: do
  __half feedback[kLowerElements];
  float gates[kGateRows * kChunk];
};

template <int K, int V>
struct ScanInputs<K, V, GateKind::kChannel> {
  Bf16 q[kChunk * K];
  Bf16 k[kChunk * K];
  Bf16 v[kChunk * V];
  __half feedback[kLowerElements];
  __half scores[kLowerElements];
  float g[kChunk * K];
  float gates[kChunk];
};

// What is made from them. GDN: P. KDA: q and k become scale q exp(G) and k exp(G) in place.
template <int K, int V, GateKind kKind>
struct ScanMade;

template <int K, int V>
struct ScanMade<K, V, GateKind::kScalar> {
  __half scores[kLowerElements];
};

template <int K, int V>
struct ScanMade<K, V, GateKind::kChannel> {
  Bf16 k_left[kChunk * K];  // k exp(G_C - G)
  float decay[K];           // exp(G_C)
  float totals[GateParts<K, ScanShape<K, V, GateKind::kChannel>::kThreads>::kParts * K];
};

// P of a chunk with one decay per token. The warps share the lower tiles; a barrier must follow.
template <int K, int kWarps>
__device__ __forceinline__ void make_scores(__half* scores, const Bf16* q, const Bf16* k,
                                            const float* gates, float scale) {
  const int g = fragment_row();
  const int t2 = fragment_column();
  const float* sum = gates + kGateSum * kChunk;
#pragma unroll 1
  for (int tile = warp_id(); tile < kLowerTiles; tile += kWarps) {
    const int row = lower_tile_row(tile);
    const int column = tile - lower_tile(row, 0);
    float d[2][4] = {};
#pragma unroll
    for (int c = 0; c < K; c += kTile) {
      uint32_t a[4];
      uint32_t b[4];
      load_left<Tile<K>>(a, q, kTile * row, c);
      load_right<Tile<K>>(b, k, kTile * column, c);
      multiply(d[0], d[1], a, b);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 sum_column = load_pair(sum + kTile * column + 8 * half + t2);
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int i = g + 8 * upper;
        const int j = 8 * half + t2;
        const float sum_row = sum[kTile * row + i];
        float low = scale * d[half][2 * upper] * exp2_approximate(sum_row - sum_column.x);
        float high = scale * d[half][2 * upper + 1] * exp2_approximate(sum_row - sum_column.y);
        if (row == column) {
          low = i >= j ? low : 0.0F;
          high = i >= j + 1 ? high : 0.0F;
        }
        store_word(scores + tile * kTileElements + SmallTile::at(i, j), pack_fp16(low, high));
      }
    }
  }
}

// KDA: q, k to scale q exp(G), k exp(G), and k exp(G_C - G) besides. Ends with a barrier.
template <int K, int kThreads>
__device__ __forceinline__ void make_gated_keys(Bf16* q, Bf16* k, Bf16* k_left, float* decay,
                                                float* totals, const float* gates, float scale) {
  cumulate_gates<K, kThreads>(
      gates, totals, [&](int row, int channel, float2, float2 sum, float2 total) {
        const int at = Tile<K>::at(row, channel);
        const uint32_t q_word = load_word(q + at);
        const uint32_t k_word = load_word(k + at);
        const float grown_x = exp2_approximate(sum.x);
        const float grown_y = exp2_approximate(sum.y);
        store_word(q + at, pack_bf16(scale * grown_x * low_bf16(q_word),
                                     scale * grown_y * high_bf16(q_word)));
        store_word(k + at, pack_bf16(grown_x * low_bf16(k_word), grown_y * high_bf16(k_word)));
        store_word(k_left + at, pack_bf16(exp2_approximate(total.x - sum.x) * low_bf16(k_word),
                                          exp2_approximate(total.y - sum.y) * high_bf16(k_word)));
        if (row == kChunk - 1)
          *reinterpret_cast<float2*>(decay + channel) = make_float2(grown_x, grown_y);
      });
  __syncthreads();
}

// The warp's part of a state in fragments, s[K / 8] over K, from or to f32 [K, V].
template <int K, int V>
__device__ __forceinline__ void load_state(float (&s)[K / 8][4], const float* state) {
  const int v = kTile * warp_id() + fragment_row();
  const int t2 = fragment_column();
#pragma unroll
  for (int n = 0; n < K / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = state[(8 * n + t2 + e % 2) * V + v + 8 * (e / 2)];
  }
}

template <int K, int V>
__device__ __forceinline__ void store_state(float* state, const float (&s)[K / 8][4]) {
  const int v = kTile * warp_id() + fragment_row();
  const int t2 = fragment_column();
#pragma unroll
  for (int n = 0; n < K / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) state[(8 * n + t2 + e % 2) * V + v + 8 * (e / 2)] = s[n][e];
  }
}

// The same, packed as left operands, to bf16 [V, K].
template <int K>
__device__ __forceinline__ void store_state_bf16(Bf16* state,
                                                 const uint32_t (&packed)[K / kTile][4]) {
  Bf16* to = state + (kTile * warp_id() + fragment_row()) * K + fragment_column();
#pragma unroll
  for (int c = 0; c < K / kTile; ++c) {
    store_word(to + kTile * c, packed[c][0]);
    store_word(to + 8 * K + kTile * c, packed[c][1]);
    store_word(to + kTile * c + 8, packed[c][2]);
    store_word(to + 8 * K + kTile * c + 8, packed[c][3]);
  }
}

}  // namespace deltatrain::backend::cuda::delta
