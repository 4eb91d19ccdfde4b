// What attention's kernels for groups of four warps share: tiles of 64 rows, the heads' width
// padded to 64 columns with zeros, as operands of group products.
#pragma once

#include "backend/cuda/causal_attention/tiles.cuh"
#include "backend/cuda/hopper/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda::hopper {

using attention::Bf16;
using attention::chunk_address;
using attention::kChunk;

inline constexpr float kLog2e = 1.4426950408889634F;
inline constexpr int kTile = 64;   // rows
inline constexpr int kWidth = 64;  // columns
inline constexpr int kTileElements = kTile * kWidth;
inline constexpr size_t kTileAlignment = 1024;

// The dynamic shared memory, of sizeof(Shared) + kTileAlignment bytes, as tiles need it.
template <class Shared>
__device__ __forceinline__ Shared& aligned_shared() {
  const auto base = reinterpret_cast<uintptr_t>(dynamic_shared<unsigned char>());
  return *reinterpret_cast<Shared*>((base + kTileAlignment - 1) / kTileAlignment * kTileAlignment);
}

// Starts copying rows [first, first + kRows) of a head, of a sequence that ends at `end`; zeros
// from there on.
template <int kRows, int kThreads>
__device__ __forceinline__ void copy_rows(Bf16* s_tile, const Bf16* from, int64_t row_stride,
                                          int first, int end, int width) {
  constexpr int kChunks = kWidth / kChunk;
#pragma unroll
  for (int n = 0; n < (kRows * kChunks + kThreads - 1) / kThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    if (kRows * kChunks % kThreads != 0 && i >= kRows * kChunks) break;
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const bool valid = first + row < end && chunk * kChunk < width;
    const Bf16* source =
        valid ? from + static_cast<int64_t>(first + row) * row_stride + chunk * kChunk : from;
    copy_async_16(chunk_address<kWidth>(s_tile, row, chunk), source, valid);
  }
}

// Four 16 x 16 left operands from a 64 x 64 result of the group.
__device__ __forceinline__ void pack_result(uint32_t (&words)[4][4], const float (&result)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i / 4][i % 4] = pack_bf16(result[2 * i], result[2 * i + 1]);
}

// The lane's rows `row` and `row + 8` of a 64 x 64 result, as bf16.
__device__ __forceinline__ void store_rows(const float (&result)[32], float factor, Bf16* to,
                                           int64_t row_stride, int row, int end, int width) {
  const int column = lane_id() % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j * 8 >= width) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= end) continue;
      *reinterpret_cast<uint32_t*>(to + static_cast<int64_t>(row + 8 * half) * row_stride + j * 8 +
                                   column) =
          pack_bf16(result[4 * j + 2 * half] * factor, result[4 * j + 2 * half + 1] * factor);
    }
  }
}

}  // namespace deltatrain::backend::cuda::hopper
