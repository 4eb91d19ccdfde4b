// Tiles of bf16 rows in shared memory and the fragments of matrix products made from them.
//
// A tile has rows of kWidth elements. Its 16-byte chunks are stored at chunk ^ (row % 8), so that
// the eight rows that one fragment load touches lie in different banks.
#pragma once

#include "backend/cuda/causal_attention/head_tiles.cuh"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"
#include "backend/cuda/sequences.cuh"

namespace deltatrain::backend::cuda::attention {

using Bf16 = __nv_bfloat16;
using HeadRows = HeadRowsOf<Bf16>;
inline constexpr int kChunk = 8;  // bf16 elements of 16 bytes

template <int kWidth>
__device__ __forceinline__ Bf16* chunk_address(Bf16* s_tile, int row, int chunk) {
  return s_tile + row * kWidth + ((chunk ^ (row % 8)) * kChunk);
}

// Starts copying rows [first, first + kRows) into a tile; rows from `end` on and columns past the
// width are zeros.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_tile(Bf16* s_tile, const HeadRows& rows, int first, int end) {
  constexpr int kChunks = kWidth / kChunk;
  static_assert(kRows * kChunks % kThreads == 0);
#pragma unroll
  for (int n = 0; n < kRows * kChunks / kThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const bool valid = first + row < end && chunk * kChunk < rows.width;
    const Bf16* from =
        valid ? rows.data + static_cast<int64_t>(first + row) * rows.row_stride + chunk * kChunk
              : rows.data;
    copy_async_16(chunk_address<kWidth>(s_tile, row, chunk), from, valid);
  }
}

// 16 x 16 of the left operand: rows row.. of the tile, its columns 16 k16...
template <int kWidth>
__device__ __forceinline__ void load_left(uint32_t (&words)[4], Bf16* s_tile, int row, int k16) {
  const int lane = lane_id();
  load_matrices(words, chunk_address<kWidth>(s_tile, row + lane % 16, 2 * k16 + lane / 16));
}

// 16 x 16 of the right operand where the tile holds its transpose, rows row..: words 0, 1 for the
// first 8 of them and words 2, 3 for the others.
template <int kWidth>
__device__ __forceinline__ void load_right_from_transpose(uint32_t (&words)[4], Bf16* s_tile,
                                                          int row, int k16) {
  const int lane = lane_id();
  load_matrices(
      words, chunk_address<kWidth>(s_tile, row + lane % 8 + lane / 16 * 8, 2 * k16 + lane / 8 % 2));
}

// 16 x 16 of the right operand, rows row.. and columns 16 n16.. of the tile: words 0, 1 for the
// first 8 columns and words 2, 3 for the others.
template <int kWidth>
__device__ __forceinline__ void load_right(uint32_t (&words)[4], Bf16* s_tile, int row, int n16) {
  const int lane = lane_id();
  load_matrices_transposed(words,
                           chunk_address<kWidth>(s_tile, row + lane % 16, 2 * n16 + lane / 16));
}

// Two neighbouring 16 x 8 results as the left operand, 16 x 16, of the next product.
__device__ __forceinline__ void as_left(uint32_t (&words)[4], const float (&first)[4],
                                        const float (&second)[4]) {
  words[0] = pack_bf16(first[0], first[1]);
  words[1] = pack_bf16(first[2], first[3]);
  words[2] = pack_bf16(second[0], second[1]);
  words[3] = pack_bf16(second[2], second[3]);
}

// Writes a 16 x (8 kTiles) result as bf16: the lane's rows `row` and `row + 8`.
template <int kTiles>
__device__ __forceinline__ void store_result(const float (&result)[kTiles][4], float factor_low,
                                             float factor_high, Bf16* to, int64_t row_stride,
                                             int row, int end, int width) {
  const int column = lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (n * 8 >= width) continue;
    if (row < end) {
      *reinterpret_cast<uint32_t*>(to + static_cast<int64_t>(row) * row_stride + n * 8 + column) =
          pack_bf16(result[n][0] * factor_low, result[n][1] * factor_low);
    }
    if (row + 8 < end) {
      *reinterpret_cast<uint32_t*>(to + static_cast<int64_t>(row + 8) * row_stride + n * 8 +
                                   column) =
          pack_bf16(result[n][2] * factor_high, result[n][3] * factor_high);
    }
  }
}

}  // namespace deltatrain::backend::cuda::attention
