// What the kernels of the gated delta rule share: where chunks lie in packed sequences, and their
// arguments.
//
// A sequence is cut into chunks of C = 64 rows; its last chunk may be shorter. Chunks of all
// sequences are numbered 0 .. J-1 in order. Tensors that only these kernels see have one block per
// (chunk, value head), always of 64 rows, the rows past the end as if k = v = q = 0, beta = 0 and g
// = 0.
//
// One value head, one chunk, E_ij = exp(G_i - G_j) with G the cumulative sum of g in the chunk:
//
//   M_ij = sum_c k_ic k_jc E_ijc  (i > j)       P_ij = scale sum_c q_ic k_jc E_ijc  (i >= j)
//   y    = v - (k exp(G)) S                     what the entering state does not say about v
//   z    = y - F (beta y)                       the same with the writes of earlier rows in the
//   chunk F    = M (I + beta M)^-1                    strictly lower; free of divisions by beta,
//   |F_ij| <= 1 o    = scale (q exp(G)) S + P (beta z)      S <- exp(G_C) S + (k exp(G_C - G))^T
//   (beta z)
//
// and backward, dS the gradient of the leaving state:
//
//   dd    = P^T do + (k exp(G_C - G)) dS        gradient of d = beta z as far as o and S show it
//   dr    = dd - F^T (beta dd)                  the same through later rows
//   dv    = beta dr,  dbeta_i = dr_i . z_i
//   dS   <- exp(G_C) dS + scale (q exp(G))^T do - (k exp(G))^T dv
//   dP_ij = do_i . beta_j z_j  (i >= j)         dM_ij = -dv_i . beta_j z_j  (i > j)
//
// F and P are bounded by 1 and scale, so they are kept in fp16, 8 times finer than bf16; what they
// multiply is brought to fp16 by a power of two per column of V (block floating point). Correlated
// keys amplify rounding in just these products. All other operands are bf16.
//
// z and dv are stored in bf16 with what rounding takes from a row added to the next one. With
// correlated keys dq and dg are made of sums of them over rows, in which the rounding then cancels:
// with one key everywhere such a sum is the difference of two v.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace deltatrain::backend::cuda::delta {

using Bf16 = __nv_bfloat16;

inline constexpr int kChunk = 64;  // rows of a chunk, C
inline constexpr int kTile = 16;   // rows and columns of a tile of C x C matrices
inline constexpr int kTileRows = kChunk / kTile;
inline constexpr int kLowerTiles = 10;  // tiles on and below the diagonal
inline constexpr int kTileElements = kTile * kTile;
inline constexpr int kLowerElements = kLowerTiles * kTileElements;
inline constexpr float kLog2E = 1.4426950408889634F;

// Per (chunk, value head) of GDN: four rows of 64 f32. KDA keeps beta alone.
enum GateRow : int { kGateSum = 0, kGateBeta = 1, kGateGrown = 2, kGateLeft = 3, kGateRows = 4 };

struct ChunkMap {
  const int32_t* offsets = nullptr;  // [S + 1]
  const int32_t* first_chunk =
      nullptr;  // [S + 1]; null where all sequences have chunks_per_sequence
  const int32_t* chunk_sequence = nullptr;  // [J]
  int chunks_per_sequence = 0;
};

// Tensors as in ops/gated_delta_rule.h; J chunks. A kernel reads the fields that it needs.
struct DeltaArguments {
  ChunkMap map;
  int H = 0;
  int G = 0;
  float scale = 1;
  const Bf16* q = nullptr;
  const Bf16* k = nullptr;
  const Bf16* v = nullptr;
  int64_t v_stride = 0;
  const float* g = nullptr;
  const float* beta = nullptr;
  float* gates =
      nullptr;  // GDN [J, G, 4, 64]: G in base 2, beta, exp(G), exp(G_C - G). KDA [J, G, 64]: beta
  __half* feedback = nullptr;  // [J, G, 10 tiles, 16, 16]: F
  __half* scores = nullptr;    // KDA [J, G, 10 tiles, 16, 16]: P
  Bf16* residual = nullptr;    // [J, G, 64, V]: z; null where no backward follows
  Bf16* states =
      nullptr;  // [J, G, V, K]: the state entering the chunk; null where no backward follows
  const float* initial_state = nullptr;
  float* final_state = nullptr;
  Bf16* o = nullptr;
  const Bf16* d_o = nullptr;
  const float* d_final_state = nullptr;
  float* d_initial_state = nullptr;
  Bf16* d_states = nullptr;  // [J, G, V, K]: gradient of the state leaving the chunk
  Bf16* dq = nullptr;
  Bf16* dk = nullptr;
  Bf16* dv = nullptr;
  int64_t dv_stride = 0;
  float* dg = nullptr;
  float* dbeta = nullptr;
  float* dq_of_head = nullptr;  // KDA with grouped heads: f32 [R, G, K], added up afterwards
  float* dk_of_head = nullptr;
};

struct ChunkPlace {
  int64_t first_row;
  int rows;  // 1 .. 64
  int sequence;
  bool is_first;  // of its sequence
  bool is_last;
};

__device__ __forceinline__ int first_chunk_of(const ChunkMap& map, int sequence) {
  return map.first_chunk == nullptr ? sequence * map.chunks_per_sequence
                                    : map.first_chunk[sequence];
}

__device__ __forceinline__ ChunkPlace place_in_sequence(const ChunkMap& map, int sequence,
                                                        int index) {
  const int64_t begin = map.offsets[sequence];
  const int64_t first = begin + int64_t{kChunk} * index;
  const int64_t left = map.offsets[sequence + 1] - first;
  return {first, left < kChunk ? static_cast<int>(left) : kChunk, sequence, index == 0,
          left <= kChunk};
}

__device__ __forceinline__ ChunkPlace place_of_chunk(const ChunkMap& map, int chunk) {
  const int sequence =
      map.first_chunk == nullptr ? chunk / map.chunks_per_sequence : map.chunk_sequence[chunk];
  return place_in_sequence(map, sequence, chunk - first_chunk_of(map, sequence));
}

}  // namespace deltatrain::backend::cuda::delta
