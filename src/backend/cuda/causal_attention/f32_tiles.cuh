// Tiles of f32 rows in shared memory, and products of them made of multiplications and additions in
// registers: no matrix unit has f32 operands.
//
// A warp owns kWarpRows rows of a block's results, a lane kM of them and kN columns. Of a matrix
// of scores those are the rows row_lane + i kRowLanes and the columns column_lane + j kColumnLanes,
// so that the lanes read neighbouring rows of the operands; of a matrix of kWidth columns, whose
// right operand has them side by side, they are two chunks from column_lane kChunk on.
#pragma once

#include "backend/cuda/causal_attention/attention.h"
#include "backend/cuda/causal_attention/head_tiles.cuh"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"  // asynchronous copies
#include "backend/cuda/sequences.cuh"

namespace deltatrain::backend::cuda::attention_f32 {

using attention::kStep;
using attention::kThreads;
using attention::kWarps;
using HeadRows = attention::HeadRowsOf<float>;

inline constexpr int kChunk = 4;  // elements of 16 bytes
inline constexpr int kWidth = static_cast<int>(kMaxF32TileWidth);
inline constexpr int kColumnLanes = 8;
inline constexpr int kRowLanes = kWarpSize / kColumnLanes;
inline constexpr int kM = 4;
inline constexpr int kN = kStep / kColumnLanes;
inline constexpr int kWarpRows = kRowLanes * kM;
inline constexpr int kRows = kWarps * kWarpRows;  // of a block
static_assert(kWidth == kN * kColumnLanes && kN == 2 * kChunk);

// Rows of a tile lie 4 banks apart, those of weights, which are stored one by one, 8: then the
// lanes of a warp meet different banks in both.
inline constexpr int kStride = kWidth + kChunk;
inline constexpr int kWeightStride = kStep + 2 * kChunk;

// What forward and backward read.
struct Inputs {
  const float* q;
  const float* k;
  const float* v;
  int64_t v_row_stride;
  int64_t v_head_stride;
  const int32_t* offsets;
  int num_sequences;
  int R;
  int H;
  int K;
  int V;
  float scale;

  __device__ __forceinline__ HeadRows q_rows(int head) const {
    return {q + head * K, int64_t{H} * K, K};
  }
  __device__ __forceinline__ HeadRows k_rows(int head) const {
    return {k + head * K, int64_t{H} * K, K};
  }
  __device__ __forceinline__ HeadRows v_rows(int head) const {
    return {v + head * v_head_stride, v_row_stride, V};
  }
  __device__ __forceinline__ int sequence(int row) const {
    return find_sequence(offsets, num_sequences, row);
  }
};

template <class Args>
Inputs inputs(const Args& args) {
  return {pointer<const float>(args.q_RHK),
          pointer<const float>(args.k_RHK),
          pointer<const float>(args.v_RHV),
          args.v_RHV.stride(0),
          args.v_RHV.stride(1),
          pointer<const int32_t>(args.sequences.device_offsets),
          narrow<int>(args.sequences.num()),
          narrow<int>(args.q_RHK.size(0)),
          narrow<int>(args.q_RHK.size(1)),
          narrow<int>(args.q_RHK.size(2)),
          narrow<int>(args.v_RHV.size(2)),
          static_cast<float>(args.scale)};
}

struct LanePlace {
  int row;     // the lane's first, within the block's tile
  int column;  // of a matrix of scores, the lane's first

  __device__ __forceinline__ LanePlace()
      : row(warp_id() * kWarpRows + lane_id() / kColumnLanes), column(lane_id() % kColumnLanes) {}
};

// Long sums are made of sums of this many products, or of a tile's rows: rounding errors grow with
// the number of additions behind each other, and these kernels are the reference that bf16 is
// held against.
inline constexpr int kPart = 16;
static_assert(kWidth % kPart == 0);

__device__ __forceinline__ void add(float (&sums)[kM][kN], const float (&others)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) sums[i][j] += others[i][j];
  }
}

// Starts copying rows [first, first + kNumRows) into a tile; rows from `end` on and columns past
// the width are zeros.
template <int kNumRows>
__device__ __forceinline__ void copy_tile(float* s_tile, const HeadRows& rows, int first, int end) {
  constexpr int kChunks = kWidth / kChunk;
  static_assert(kNumRows * kChunks % kThreads == 0);
#pragma unroll
  for (int n = 0; n < kNumRows * kChunks / kThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    const bool valid = first + row < end && column < rows.width;
    const float* from =
        valid ? rows.data + static_cast<int64_t>(first + row) * rows.row_stride + column
              : rows.data;
    copy_async_16(s_tile + row * kStride + column, from, valid);
  }
}

// sums += the lane's rows of `s_left` times its columns, which are rows of `s_right`. Zeros follow
// the width up to the next multiple of kPart.
__device__ __forceinline__ void add_scores(float (&sums)[kM][kN], const float* s_left,
                                           const float* s_right, const LanePlace& place,
                                           int width) {
  const float* left_at = s_left + place.row * kStride;
  const float* right_at = s_right + place.column * kStride;
#pragma unroll 1
  for (int part = 0; part < width; part += kPart) {
    float part_sums[kM][kN] = {};
#pragma unroll
    for (int k = part; k < part + kPart; k += kChunk) {
      float left[kM][kChunk];
#pragma unroll
      for (int i = 0; i < kM; ++i) load_values(left_at + i * kRowLanes * kStride + k, left[i]);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        float right[kChunk];
        load_values(right_at + j * kColumnLanes * kStride + k, right);
#pragma unroll
        for (int e = 0; e < kChunk; ++e) {
#pragma unroll
          for (int i = 0; i < kM; ++i)
            part_sums[i][j] = fmaf(left[i][e], right[e], part_sums[i][j]);
        }
      }
    }
    add(sums, part_sums);
  }
}

// The warp's rows of weights, for all of its lanes to read. Those of before have been read.
__device__ __forceinline__ void share_weights(float* s_weights, const float (&weights)[kM][kN],
                                              const LanePlace& place) {
  sync_warp();
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      s_weights[(place.row + i * kRowLanes) * kWeightStride + place.column + j * kColumnLanes] =
          weights[i][j];
    }
  }
  sync_warp();
}

// sums += the lane's rows of `s_weights` times the columns of `s_right`, a tile of kStep rows.
__device__ __forceinline__ void add_weighted_rows(float (&sums)[kM][kN], const float* s_weights,
                                                  const float* s_right, const LanePlace& place) {
  const float* left_at = s_weights + place.row * kWeightStride;
  const float* right_at = s_right + place.column * kChunk;
  float part_sums[kM][kN] = {};
#pragma unroll 2
  for (int n = 0; n < kStep; n += kChunk) {
    float left[kM][kChunk];
#pragma unroll
    for (int i = 0; i < kM; ++i) load_values(left_at + i * kRowLanes * kWeightStride + n, left[i]);
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      float right[2][kChunk];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        load_values(right_at + (n + e) * kStride + half * (kWidth / 2), right[half]);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int i = 0; i < kM; ++i)
          part_sums[i][j] = fmaf(left[i][e], right[j / kChunk][j % kChunk], part_sums[i][j]);
      }
    }
  }
  add(sums, part_sums);
}

// Writes sums that add_weighted_rows made, times `factor`.
__device__ __forceinline__ void store_sums(const float (&sums)[kM][kN], float factor, float* to,
                                           int64_t row_stride, int first_row, int end, int width,
                                           const LanePlace& place) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int row = first_row + place.row + i * kRowLanes;
    if (row >= end) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = half * (kWidth / 2) + place.column * kChunk;
      if (column >= width) continue;
      float values[kChunk];
#pragma unroll
      for (int e = 0; e < kChunk; ++e) values[e] = sums[i][half * kChunk + e] * factor;
      store_values(to + static_cast<int64_t>(row) * row_stride + column, values);
    }
  }
}

}  // namespace deltatrain::backend::cuda::attention_f32
