// Tiles in shared memory and their fragments in registers, on top of the 16 x 16 x 16 product of
// ptx_wrappers.cuh.
//
// In a fragment of an accumulator, lane = 4 g + t holds of each 16 x 8 tile (g, 2t), (g, 2t + 1),
// (g + 8, 2t), (g + 8, 2t + 1). Two of them side by side, packed to 16 bits, are the left operand
// of the next product.
#pragma once

#include "backend/cuda/gated_delta_rule/chunks.cuh"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda::delta {

// Where lane 4 g + t stands in a fragment.
__device__ __forceinline__ int fragment_row() { return lane_id() / 4; }
__device__ __forceinline__ int fragment_column() { return 2 * (lane_id() % 4); }

// Rows of kWidth 16-bit elements. Units of 8 elements are permuted within a row, so that the same
// unit of 8 neighbouring rows covers all banks. The permutation repeats every kPeriod rows.
template <int kWidth>
struct Tile {
  static constexpr int kUnits = kWidth / 8;
  static constexpr int kPeriod = 8;
  static_assert(kWidth % 16 == 0 && (kUnits & (kUnits - 1)) == 0);

  __device__ static __forceinline__ int permutation(int row) {
    if constexpr (kUnits >= 8) {
      return row & 7;
    } else if constexpr (kUnits == 4) {
      return (row >> 1) & 3;
    } else {
      return (row >> 2) & 1;
    }
  }
  // Index of an element.
  __device__ static __forceinline__ int at(int row, int column) {
    return row * kWidth + (((column / 8) ^ permutation(row)) * 8) + column % 8;
  }
};

// The same for f32: groups of 8 elements, so that a fragment's columns in 4 neighbouring rows cover
// all banks.
template <int kWidth>
struct FloatTile {
  static constexpr int kGroups = kWidth / 8;
  static constexpr int kPeriod = 4;
  static_assert(kWidth % 16 == 0 && (kGroups & (kGroups - 1)) == 0);

  __device__ static __forceinline__ int permutation(int row) {
    if constexpr (kGroups >= 4) {
      return row & 3;
    } else {
      return (row >> 1) & 1;
    }
  }
  __device__ static __forceinline__ int at(int row, int column) {
    return row * kWidth + (((column / 8) ^ permutation(row)) * 8) + column % 8;
  }
};

// Lower tiles are stored one after the other, row of tiles by row of tiles.
__host__ __device__ constexpr int lower_tile(int row, int column) {
  return row * (row + 1) / 2 + column;
}
__device__ __forceinline__ int lower_tile_row(int tile) {
  return tile < 1 ? 0 : tile < 3 ? 1 : tile < 6 ? 2 : 3;
}

// ---- fragments
// -----------------------------------------------------------------------------------------
// `Layout` is the Tile of the stored matrix; (row, column) its element where the 16 x 16 part
// begins.

// `row` is a multiple of 16, so a lane's row decides the permutation; `column` a multiple of 16, so
// that adding the lane's unit of 8 columns is the same as flipping a bit.
template <class Layout>
__device__ __forceinline__ int fragment_at(int row, int column, int lane_row, int lane_unit) {
  constexpr int kWidth = 8 * Layout::kUnits;
  const int lane_part = lane_row * kWidth + 8 * (lane_unit ^ Layout::permutation(lane_row));
  return row * kWidth + (lane_part ^ column);
}

// Left operand [m, k], stored as it is.
template <class Layout, class Element>
__device__ __forceinline__ void load_left(uint32_t (&a)[4], const Element* tile, int row,
                                          int column) {
  const int lane = lane_id();
  load_matrices(a, tile + fragment_at<Layout>(row, column, lane & 15, lane >> 4));
}

// Left operand [m, k], stored as [k, m].
template <class Layout, class Element>
__device__ __forceinline__ void load_left_transposed(uint32_t (&a)[4], const Element* tile, int row,
                                                     int column) {
  const int lane = lane_id();
  load_matrices_transposed(
      a, tile + fragment_at<Layout>(row, column, (lane & 7) + 8 * (lane >> 4), (lane >> 3) & 1));
}

// Right operand [k, n] for n of two 8-column tiles, stored as [n, k]: words 0, 1 for the first, 2,
// 3 for the second.
template <class Layout, class Element>
__device__ __forceinline__ void load_right(uint32_t (&b)[4], const Element* tile, int row,
                                           int column) {
  const int lane = lane_id();
  load_matrices(
      b, tile + fragment_at<Layout>(row, column, (lane & 7) + 8 * (lane >> 4), (lane >> 3) & 1));
}

// Right operand [k, n], stored as it is.
template <class Layout, class Element>
__device__ __forceinline__ void load_right_transposed(uint32_t (&b)[4], const Element* tile,
                                                      int row, int column) {
  const int lane = lane_id();
  load_matrices_transposed(b, tile + fragment_at<Layout>(row, column, lane & 15, lane >> 4));
}

// d[16, 16] += a b
__device__ __forceinline__ void multiply(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[4]) {
  mma_16x8x16_bf16(d0, a, b[0], b[1]);
  mma_16x8x16_bf16(d1, a, b[2], b[3]);
}

__device__ __forceinline__ void multiply_fp16(float (&d0)[4], float (&d1)[4],
                                              const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  mma_16x8x16_fp16(d0, a, b[0], b[1]);
  mma_16x8x16_fp16(d1, a, b[2], b[3]);
}

// Two accumulator tiles side by side as the left operand of a product.
__device__ __forceinline__ void to_left(uint32_t (&a)[4], const float (&d0)[4],
                                        const float (&d1)[4]) {
  a[0] = pack_bf16(d0[0], d0[1]);
  a[1] = pack_bf16(d0[2], d0[3]);
  a[2] = pack_bf16(d1[0], d1[1]);
  a[3] = pack_bf16(d1[2], d1[3]);
}

__device__ __forceinline__ uint32_t pack_fp16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float low_bf16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xffff0000U);
}

// (x, y) as the sum of two pairs of bf16 numbers.
struct SplitWord {
  uint32_t high;
  uint32_t low;
};
__device__ __forceinline__ SplitWord split(float x, float y) {
  SplitWord word;
  word.high = pack_bf16(x, y);
  word.low = pack_bf16(x - low_bf16(word.high), y - high_bf16(word.high));
  return word;
}

// Powers of two that bring the two rows of a fragment (g and g + 8) to the range of fp16 and back.
struct RowScale {
  float up[2];
  float down[2];
};

// From the largest absolute value per row among this lane's columns: the largest of a row becomes 1
// to 2, or stays below where it is under 2^-64 (beta may be 0 where what it weights is not). One
// with infinities or NaN stays not finite.
__device__ __forceinline__ RowScale scale_rows(float largest_g, float largest_g8) {
  RowScale scale;
  const float largest[2] = {max_over_lanes<4>(largest_g), max_over_lanes<4>(largest_g8)};
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    constexpr uint32_t kLowest = (127U - 64U) << 23;
    const uint32_t exponent = max(__float_as_uint(largest[upper]) & 0x7f800000U, kLowest);
    scale.down[upper] = __uint_as_float(exponent);
    scale.up[upper] = __uint_as_float(0x7f000000U - exponent);
  }
  return scale;
}

__device__ __forceinline__ float largest_of(float largest, float x, float y) {
  return fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
}

template <int kCount>
__device__ __forceinline__ void multiply_rows(float (&d)[kCount][4], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    d[i][0] *= factor[0];
    d[i][1] *= factor[0];
    d[i][2] *= factor[1];
    d[i][3] *= factor[1];
  }
}

template <int kCount>
__device__ __forceinline__ void set_zero(float (&d)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) d[i][e] = 0;
  }
}

template <class Element>
__device__ __forceinline__ uint32_t load_word(const Element* at) {
  return *reinterpret_cast<const uint32_t*>(at);
}
__device__ __forceinline__ void store_word(void* at, uint32_t word) {
  *static_cast<uint32_t*>(at) = word;
}
__device__ __forceinline__ float2 load_pair(const float* at) {
  return *reinterpret_cast<const float2*>(at);
}

// ---- copies
// --------------------------------------------------------------------------------------------

// Starts copies of kRows rows of kElements; rows from `rows` on become zero. A thread copies the
// same 16 bytes of every kStep-th row, so that addresses advance by constants.
template <class Layout, int kRowUnits, int kRows, int kThreads, class Element>
__device__ __forceinline__ void copy_any_rows_async(Element* tile, const Element* from,
                                                    int64_t stride, int rows) {
  static_assert(kThreads % kRowUnits == 0);
  constexpr int kPerUnit = 16 / static_cast<int>(sizeof(Element));
  constexpr int kStep = kThreads / kRowUnits;
  static_assert(kStep % Layout::kPeriod == 0 && (kRows % kStep == 0 || kRows < kStep));
  const int row = static_cast<int>(threadIdx.x) / kRowUnits;
  const int column = static_cast<int>(threadIdx.x) % kRowUnits * kPerUnit;
  Element* to = tile + Layout::at(row, column);
  const Element* next = from + row * stride + column;
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    if (kRows >= kStep || row < kRows) {
      const bool valid = row + i < rows;
      copy_async_16(to + i * kRowUnits * kPerUnit, valid ? next : from, valid);
    }
    next += kStep * stride;
  }
}

template <int kWidth, int kThreads>
__device__ __forceinline__ void copy_rows_async(Bf16* tile, const Bf16* from, int64_t stride,
                                                int rows) {
  copy_any_rows_async<Tile<kWidth>, kWidth / 8, kChunk, kThreads>(tile, from, stride, rows);
}

// kRows full rows that lie one after the other.
template <int kWidth, int kRows, int kThreads>
__device__ __forceinline__ void copy_block_async(Bf16* tile, const Bf16* from) {
  copy_any_rows_async<Tile<kWidth>, kWidth / 8, kRows, kThreads>(tile, from, kWidth, kRows);
}

// f32 rows of kWidth into a FloatTile; rows from `rows` on become zero.
template <int kWidth, int kThreads>
__device__ __forceinline__ void copy_float_rows_async(float* tile, const float* from,
                                                      int64_t stride, int rows) {
  copy_any_rows_async<FloatTile<kWidth>, kWidth / 4, kChunk, kThreads>(tile, from, stride, rows);
}

// kBytes without any layout.
template <int kBytes, int kThreads>
__device__ __forceinline__ void copy_bytes_async(void* to, const void* from) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kBytes / 16; i += kThreads) {
    copy_async_16(static_cast<unsigned char*>(to) + 16 * i,
                  static_cast<const unsigned char*>(from) + 16 * i, true);
  }
}

// ---- transposed results
// --------------------------------------------------------------------------------

// Puts the 16 (columns of the tile) x 16 (rows of the tile) fragment `a` into a tile as its
// transpose.
template <class Layout>
__device__ __forceinline__ void store_transposed(Bf16* tile, int row, int column,
                                                 const uint32_t (&a)[4]) {
  const int lane = lane_id();
  Bf16* first = tile + fragment_at<Layout>(row, column, lane / 4, 0) + 2 * (lane % 4);
  Bf16* second = tile + fragment_at<Layout>(row, column, lane / 4, 1) + 2 * (lane % 4);
  constexpr int kEightRows = 8 * 8 * Layout::kUnits;
  store_word(first, transpose_matrix(a[0]));
  store_word(second, transpose_matrix(a[1]));
  store_word(first + kEightRows, transpose_matrix(a[2]));
  store_word(second + kEightRows, transpose_matrix(a[3]));
}

// Two accumulator tiles side by side as to_left packs them, for storing: what rounding takes from a
// row goes to the next row of the lane, whose columns g and g + 8 are in `carried`.
__device__ __forceinline__ void to_left_carried(uint32_t (&a)[4], const float (&d0)[4],
                                                const float (&d1)[4], float (&carried)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&d)[4] = i < 2 ? d0 : d1;
    const float x = d[2 * (i % 2)] + carried[i % 2];
    const float y = d[2 * (i % 2) + 1] + (x - low_bf16(pack_bf16(x, 0.0F)));
    a[i] = pack_bf16(x, y);
    carried[i % 2] = y - high_bf16(a[i]);
  }
}

// Copies the warp's own 16 columns of `rows` rows to global memory, 32 bytes per row.
template <class Layout>
__device__ __forceinline__ void store_columns(Bf16* to, int64_t stride, const Bf16* tile,
                                              int column, int rows) {
  constexpr int kStep = kWarpSize / 2;
  const int row = lane_id() / 2;
  const int unit = lane_id() % 2;
  const Bf16* from = tile + fragment_at<Layout>(0, column, row, unit);
  Bf16* next = to + row * stride + column + 8 * unit;
#pragma unroll
  for (int i = 0; i < kChunk; i += kStep) {
    if (row + i < rows)
      *reinterpret_cast<uint4*>(next) =
          *reinterpret_cast<const uint4*>(from + i * 8 * Layout::kUnits);
    next += kStep * stride;
  }
}

}  // namespace deltatrain::backend::cuda::delta
