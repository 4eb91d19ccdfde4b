// How the rows of a head are cut into tiles, and which block takes which.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/lanes.cuh"
#include "base/check.h"  // round_up

namespace deltatrain::backend::cuda::attention {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarpSize;
inline constexpr int kStep = 64;  // rows of the tiles that stream past a block
// Consecutive blocks take the tiles of this many neighbouring tiles of one head, so that the rows
// which they share are still in the cache.
inline constexpr int kTilesPerGroup = 16;

template <class T>
struct HeadRowsOf {  // the rows of one head within a tensor [R, H, width]
  const T* data;
  int64_t row_stride;
  int width;
};

// Which tile and head a block works on.
struct TileIndex {
  int tile;
  int head;

  // `descending`: within a group the last tile comes first, for it has the most to do.
  __device__ __forceinline__ TileIndex(int num_heads, bool descending) {
    const int in_group = static_cast<int>(blockIdx.x % kTilesPerGroup);
    const int rest = static_cast<int>(blockIdx.x / kTilesPerGroup);
    head = rest % num_heads;
    tile =
        rest / num_heads * kTilesPerGroup + (descending ? kTilesPerGroup - 1 - in_group : in_group);
  }
};

inline int64_t num_tile_blocks(int64_t num_tiles, int64_t num_heads) {
  return round_up(num_tiles, kTilesPerGroup) * num_heads;
}

}  // namespace deltatrain::backend::cuda::attention
