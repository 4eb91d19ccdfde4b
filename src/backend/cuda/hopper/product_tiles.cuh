// Products of large matrices by blocks that stay: tiles of 128 rows x 256 columns of the result, one after the other.
//
// A block's first group of four warps has two roles. Its first warp feeds: it copies boxes of both operands, 64 values of
// the summed index at a time, into a ring in shared memory. Two more groups multiply, 64 rows of the tile each, sums in
// registers, and leave them as bf16 in `staged`. The other three warps of the first group finish: they take staged rows
// to memory, with whatever is to be computed on the way, while the next tile is being multiplied.
//
// Blocks work in clusters of two, on tiles one above the other, and share the right operand: each copies half of it to
// both. Every sum runs over the summed index in order, in one block: results depend on nothing else.
#pragma once

#include <cuda.h>  // CUtensorMap
#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/hopper/ptx_wrappers.cuh"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda::hopper::product {

using Bf16 = __nv_bfloat16;

inline constexpr int kTileRows = 128;
inline constexpr int kTileColumns = 256;
inline constexpr int kDepth = 64;  // values of the summed index in a place of the ring
inline constexpr int kStages = 3;  // places of the ring: what `staged` leaves room for
inline constexpr int kCluster = 2;
inline constexpr uint16_t kBothBlocks = 3;  // of a cluster, a bit each
inline constexpr int kGroups = 2;           // that multiply
inline constexpr int kGroupRows = kTileRows / kGroups;
inline constexpr int kGroupThreads = kWarpsPerGroup * kWarpSize;
inline constexpr int kThreads = (1 + kGroups) * kGroupThreads;
inline constexpr int kFinishers = kWarpsPerGroup - 1;  // warps that finish
inline constexpr int kChunk = 8;                       // elements of 16 bytes
inline constexpr int kRowChunks = kTileColumns / kChunk;
inline constexpr size_t kTileAlignment = 1024;

struct Shared {
  Bf16 a[kStages][kTileRows * kDepth];
  Bf16 b[kStages][kTileColumns * kDepth];
  Bf16 staged[kTileRows * kTileColumns];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};
inline constexpr size_t kSharedBytes = sizeof(Shared) + kTileAlignment;

// The dynamic shared memory as tiles need it; the same place in every block of a cluster.
__device__ __forceinline__ Shared& aligned_shared() {
  extern __shared__ unsigned char s_product[];
  const uint32_t past = shared_address(s_product) % kTileAlignment;
  return *reinterpret_cast<Shared*>(s_product + (past == 0 ? 0 : kTileAlignment - past));
}

// Which tiles there are, and in which order they come: `band` pairs of tiles, one above the other, go through all
// columns together, so that the blocks at work at one time share rows and columns in the last cache level.
struct Tiling {
  int num_steps;  // of kDepth values
  int num_columns;
  int num_pairs;
  int band;
};

struct Place {
  int row;     // of the matrix
  int column;  // in tiles
};

// A block's walk over the tiles of its cluster.
struct Walk {
  int tile = static_cast<int>(blockIdx.x) / kCluster;
  int rank = block_rank();

  __device__ __forceinline__ bool has_tile(const Tiling& tiling) const {
    return tile < tiling.num_pairs * tiling.num_columns;
  }
  __device__ __forceinline__ void advance() { tile += static_cast<int>(gridDim.x) / kCluster; }
  __device__ __forceinline__ Place place(const Tiling& tiling) const {
    const int in_band = tiling.band * tiling.num_columns;
    const int first = tile / in_band * tiling.band;
    const int height = min(tiling.band, tiling.num_pairs - first);
    const int pair = first + tile % in_band % height;
    return {(pair * kCluster + rank) * kTileRows, tile % in_band / height};
  }
};

// A place of the ring, and the parity of the phase in which it is filled.
struct Ring {
  int place = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == kStages) {
      place = 0;
      parity ^= 1;
    }
  }
};

// By every thread, before anything else.
__device__ __forceinline__ void begin(Shared& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&s.full[i], 1);
      init_barrier(&s.empty[i], kCluster * kGroups * kWarpsPerGroup);
    }
    publish_barriers();
  }
  sync_cluster();
}

// By every thread, after everything else: until then other blocks of the cluster copy here.
__device__ __forceinline__ void end() {
  sync_warp();
  sync_cluster();
}

// By one thread. copy_half(to, rank, column, step, barrier) starts copying this block's half of the right operand's box
// to both blocks.
template <class CopyHalf>
__device__ __forceinline__ void feed(Shared& s, const Tiling& tiling, const CUtensorMap* a_map,
                                     CopyHalf copy_half) {
  constexpr uint32_t kBytes = sizeof(s.a[0]) + sizeof(s.b[0]);
  Ring ring;
#pragma unroll 1
  for (Walk walk; walk.has_tile(tiling); walk.advance()) {
    const Place place = walk.place(tiling);
#pragma unroll 1
    for (int step = 0; step < tiling.num_steps; ++step) {
      wait_copy(&s.empty[ring.place], ring.parity ^ 1);
      uint64_t* const full = &s.full[ring.place];
      expect_bytes(full, kBytes);
      copy_box(s.a[ring.place], a_map, step * kDepth, place.row, full);
      copy_half(s.b[ring.place] + walk.rank * (kTileColumns / 2) * kDepth, walk.rank, place.column,
                step, full);
      ring.advance();
    }
  }
}

// --- Handing over: the groups that multiply wait for `free` and arrive at `full`, the finishers the other way round.

inline constexpr int kFull = 1;
inline constexpr int kFree = kFull + kGroups;
inline constexpr int kHandOverThreads = kGroupThreads + kFinishers * kWarpSize;

__device__ __forceinline__ void wait_full(int group) {
  wait_named(kFull + group, kHandOverThreads);
}
// After the last tile nobody waits for it.
__device__ __forceinline__ void give_free(int group) {
  arrive_named(kFree + group, kHandOverThreads);
}

// Chunk `chunk` of a row of the staged tile.
__device__ __forceinline__ Pack<Bf16, kChunk> staged_chunk(const Shared& s, int row, int chunk) {
  return load_pack<Bf16, kChunk>(s.staged + row * kTileColumns + (chunk ^ (row % 8)) * kChunk);
}

// By the warps of group `group` of those that multiply. kTransposedB: the right operand's rows run along the summed
// index, in boxes of 64 columns each.
template <bool kTransposedB>
__device__ __forceinline__ void multiply(Shared& s, const Tiling& tiling, int group) {
  constexpr uint64_t kNextB = kTransposedB ? kNextRows : kNextInRow;
  const int lane = lane_id();
  // The lane's row of the matrices that it stores.
  const int row =
      group * kGroupRows + warp_id() % kWarpsPerGroup * 16 + lane % 8 + lane / 8 % 2 * 8;
  Bf16* const staged_row = s.staged + row * kTileColumns;
  Ring ring;
  bool is_first = true;
#pragma unroll 1
  for (Walk walk; walk.has_tile(tiling); walk.advance()) {
    float sum[128];
    int previous = 0;
#pragma unroll 1
    for (int step = 0; step < tiling.num_steps; ++step) {
      wait_copy(&s.full[ring.place], ring.parity);
      const uint64_t a = describe_tile(s.a[ring.place] + group * kGroupRows * kDepth);
      const uint64_t b =
          kTransposedB ? describe_tiles<kDepth>(s.b[ring.place]) : describe_tile(s.b[ring.place]);
      begin_products();
#pragma unroll
      for (int k16 = 0; k16 < kDepth / 16; ++k16) {
        product_64x256x16<kTransposedB>(sum, a + k16 * kNextInRow, b + k16 * kNextB,
                                        step > 0 || k16 > 0);
      }
      commit_products();
      wait_products<1>();
      if (step > 0 && lane < kCluster) arrive_in_cluster(&s.empty[previous], lane);
      previous = ring.place;
      ring.advance();
    }
    wait_products<0>();
    settle(sum);
    if (lane < kCluster) arrive_in_cluster(&s.empty[previous], lane);
    if (!is_first) wait_named(kFree + group, kHandOverThreads);
    is_first = false;
#pragma unroll
    for (int j = 0; j < kRowChunks; j += 2) {
      const int chunk = (j + lane / 16) ^ (row % 8);
      store_matrices(staged_row + chunk * kChunk, pack_bf16(sum[4 * j], sum[4 * j + 1]),
                     pack_bf16(sum[4 * j + 2], sum[4 * j + 3]),
                     pack_bf16(sum[4 * j + 4], sum[4 * j + 5]),
                     pack_bf16(sum[4 * j + 6], sum[4 * j + 7]));
    }
    arrive_named(kFull + group, kHandOverThreads);
  }
}

}  // namespace deltatrain::backend::cuda::hopper::product
