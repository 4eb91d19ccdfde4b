// F = M (I + beta M)^-1 of one chunk: how the writes of earlier rows come back in a row's residual.
//
// The 16 x 16 diagonal blocks are found by substitution in f32, the others by joining neighbours,
// 16 -> 32 -> 64:
//
//   F_21 = (I - F_22 beta_2) M_21 (I - beta_1 F_11)
//
// as two products with fp16 operands and f32 sums. Both factors map a value stream to the delta
// rule's residuals, so their entries stay at 1 for normalised keys and beta <= 1. No power series:
// it loses everything for correlated keys.
#pragma once

#include "backend/cuda/gated_delta_rule/tiles.cuh"

namespace deltatrain::backend::cuda::delta {

// Shared memory for one value head. `diagonal` holds the strictly lower part of M's diagonal tiles
// with zeros elsewhere, `below` the tiles (1,0) (2,0) (2,1) (3,0) (3,1) (3,2).
struct FeedbackSpace {
  static constexpr int kStride = 20;  // f32; rows of a diagonal tile
  static constexpr int kBlock = kTile * kStride + 4;
  float diagonal[kTileRows * kBlock];
  __half below[6 * kTileElements];
  __half left[6 * kTileElements];   // I - F beta; diagonal tiles 0 .. 3, then (1,0) and (3,2)
  __half right[6 * kTileElements];  // I - beta F
  __half feedback[kLowerElements];  // the result
  float beta[kChunk];
};

__host__ __device__ constexpr int tile_below(int row, int column) {
  return row * (row - 1) / 2 + column;
}
// Index of a tile of `left` and `right`: both tiles lie in the same 32 rows.
__host__ __device__ constexpr int tile_in_pair(int row, int column) {
  return row == column ? row : 4 + row / 2;
}

using SmallTile = Tile<kTile>;

// Places one accumulated 16 x 16 tile of F, and of the two factors where a later step reads them.
__device__ __forceinline__ void store_feedback(FeedbackSpace& space, int row, int column,
                                               const float (&d0)[4], const float (&d1)[4],
                                               bool is_factor) {
  const int g = fragment_row();
  const int t2 = fragment_column();
  __half* feedback = space.feedback + lower_tile(row, column) * kTileElements;
  __half* left = space.left + tile_in_pair(row, column) * kTileElements;
  __half* right = space.right + tile_in_pair(row, column) * kTileElements;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&d)[4] = half == 0 ? d0 : d1;
    const float2 beta_column = load_pair(space.beta + kTile * column + 8 * half + t2);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int at = SmallTile::at(g + 8 * upper, 8 * half + t2);
      const float low = d[2 * upper];
      const float high = d[2 * upper + 1];
      store_word(feedback + at, pack_fp16(low, high));
      if (is_factor) {
        const float beta_row = space.beta[kTile * row + g + 8 * upper];
        store_word(left + at, pack_fp16(-low * beta_column.x, -high * beta_column.y));
        store_word(right + at, pack_fp16(-beta_row * low, -beta_row * high));
      }
    }
  }
}

// Substitution in the diagonal tiles: groups of 16 threads take one tile each, a thread one column.
template <int kHeads, int kThreads>
__device__ __forceinline__ void solve_diagonal(FeedbackSpace* spaces, int heads) {
  static_assert(kHeads * kChunk <= kThreads);
  const int unit = static_cast<int>(threadIdx.x) / kTile;
  const int column = static_cast<int>(threadIdx.x) % kTile;
  if (unit >= heads * kTileRows) return;
  FeedbackSpace& space = spaces[unit / kTileRows];
  const int tile = unit % kTileRows;
  const float* m = space.diagonal + tile * FeedbackSpace::kBlock;
  const float* beta = space.beta + tile * kTile;
  float weighted[kTile];  // beta f
  __half* feedback = space.feedback + lower_tile(tile, tile) * kTileElements;
  __half* left = space.left + tile * kTileElements;
  __half* right = space.right + tile * kTileElements;
  const float beta_column = beta[column];
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
    float f = m[i * FeedbackSpace::kStride + column];
#pragma unroll
    for (int first = 0; first < i; first += 4) {
      const float4 row = *reinterpret_cast<const float4*>(m + i * FeedbackSpace::kStride + first);
      f -= row.x * weighted[first];
      if (first + 1 < i) f -= row.y * weighted[first + 1];
      if (first + 2 < i) f -= row.z * weighted[first + 2];
      if (first + 3 < i) f -= row.w * weighted[first + 3];
    }
    weighted[i] = beta[i] * f;
    const float identity = i == column ? 1.0F : 0.0F;
    const int at = SmallTile::at(i, column);
    feedback[at] = __float2half_rn(f);
    left[at] = __float2half_rn(identity - f * beta_column);
    right[at] = __float2half_rn(identity - weighted[i]);
  }
}

// All threads of the block take part; every one has written its part of `diagonal`, `below` and
// `beta`. The results may be read after a barrier. kHeads: value heads with space, of which the
// first `heads` are filled.
template <int kHeads, int kThreads>
__device__ __forceinline__ void solve_feedback(FeedbackSpace* spaces, int heads) {
  constexpr int kWarps = kThreads / kWarpSize;
  __syncthreads();
  solve_diagonal<kHeads, kThreads>(spaces, heads);
  __syncthreads();
  // 16 -> 32: tiles (1,0) and (3,2).
  for (int unit = warp_id(); unit < 2 * heads; unit += kWarps) {
    FeedbackSpace& space = spaces[unit / 2];
    const int row = 2 * (unit % 2) + 1;
    const int column = row - 1;
    uint32_t a[4];
    uint32_t b[4];
    float d0[4] = {};
    float d1[4] = {};
    load_left<SmallTile>(a, space.left + tile_in_pair(row, row) * kTileElements, 0, 0);
    load_right_transposed<SmallTile>(b, space.below + tile_below(row, column) * kTileElements, 0,
                                     0);
    multiply_fp16(d0, d1, a, b);
    a[0] = pack_fp16(d0[0], d0[1]);
    a[1] = pack_fp16(d0[2], d0[3]);
    a[2] = pack_fp16(d1[0], d1[1]);
    a[3] = pack_fp16(d1[2], d1[3]);
    load_right_transposed<SmallTile>(b, space.right + tile_in_pair(column, column) * kTileElements,
                                     0, 0);
#pragma unroll
    for (int e = 0; e < 4; ++e) d0[e] = d1[e] = 0;
    multiply_fp16(d0, d1, a, b);
    store_feedback(space, row, column, d0, d1, true);
  }
  __syncthreads();
  // 32 -> 64: tiles (2,0) (2,1) and (3,0) (3,1).
  for (int unit = warp_id(); unit < 2 * heads; unit += kWarps) {
    FeedbackSpace& space = spaces[unit / 2];
    const int row = 2 + unit % 2;
    uint32_t product[2][4];  // left times M, by column of tiles
    uint32_t a[4];
    uint32_t b[4];
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      float d0[4] = {};
      float d1[4] = {};
      for (int inner = 2; inner <= row; ++inner) {
        load_left<SmallTile>(a, space.left + tile_in_pair(row, inner) * kTileElements, 0, 0);
        load_right_transposed<SmallTile>(b, space.below + tile_below(inner, column) * kTileElements,
                                         0, 0);
        multiply_fp16(d0, d1, a, b);
      }
      product[column][0] = pack_fp16(d0[0], d0[1]);
      product[column][1] = pack_fp16(d0[2], d0[3]);
      product[column][2] = pack_fp16(d1[0], d1[1]);
      product[column][3] = pack_fp16(d1[2], d1[3]);
    }
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      float d0[4] = {};
      float d1[4] = {};
#pragma unroll
      for (int inner = column; inner < 2; ++inner) {
        load_right_transposed<SmallTile>(
            b, space.right + tile_in_pair(inner, column) * kTileElements, 0, 0);
        multiply_fp16(d0, d1, product[inner], b);
      }
      store_feedback(space, row, column, d0, d1, false);
    }
  }
}

}  // namespace deltatrain::backend::cuda::delta
