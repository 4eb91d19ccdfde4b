// dq, dk and dg of every chunk where a value head has one decay per token (GDN).
//
//   dq_i = scale exp(G_i) S do_i + sum_j scale E_ij dP_ij k_j
//   dk_i = -exp(G_i) S dv_i + exp(G_C - G_i) dS beta_i z_i
//          + sum_j E_ij dM_ij k_j + sum_j (scale E_ji dP_ji q_j + E_ji dM_ji k_j)
//   dG_i = q_i . dq_i + k_i . dk_i of the state's terms, later ones with the other sign
//          + sum_j X_ij - sum_j X_ji,  X_ij = dP_ij P_ij + dM_ij M_ij  (i > j)
//   dG_C += sum_i k_i . (the term with dS) + exp(G_C) S . dS
//
// X stays f32 until summed: under strong decay a row's and a column's sum differ by little. Its
// diagonal would cancel exactly and is left out.
#include "backend/cuda/gated_delta_rule/head_sizes.cuh"
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/gated_delta_rule/state_product.cuh"
#include "backend/cuda/gated_delta_rule/tiles.cuh"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

using SmallTile = Tile<kTile>;

// kParts warps share 16 rows and split K.
template <int K, int V>
struct Shape {
  static constexpr int kParts = K >= 64 ? 2 : 1;
  static constexpr int kWidth = K / kParts;
  static constexpr int kWarps = kTileRows * kParts;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStep =
      kWidth < 32 ? kWidth : 32;  // channels of the state's terms at a time
  static constexpr int kBlocksPerProcessor = K * V <= 64 * 128 ? 2 : 1;
};

template <int K, int V>
struct alignas(16) Shared {
  Bf16 q[kChunk * K];
  Bf16 k[kChunk * K];
  Bf16 d_o[kChunk * V];
  Bf16 dv[kChunk * V];
  Bf16 residual[kChunk * V];
  Bf16 state[V * K];
  Bf16 d_state[V * K];
  Bf16 d_scores[kLowerElements];      // scale E dP
  Bf16 d_scores_low[kLowerElements];  // what its rounding left out: with correlated keys much of dq
                                      // cancels
  Bf16 d_keys[kLowerElements];        // E dM
  float gates[kGateRows * kChunk];
  float row_sum[kTileRows][kChunk];     // of X, by column of tiles
  float column_sum[kTileRows][kChunk];  // of X, by row of tiles
  float from_state[Shape<K, V>::kParts][kChunk];
  float from_d_state[Shape<K, V>::kParts][kChunk];
  float state_product[Shape<K, V>::kWarps];
  float decay;  // exp(G_C)
};

template <int K, int V>
__device__ __forceinline__ void start_loads(Shared<K, V>& s, const DeltaArguments& args,
                                            ChunkPlace place, int chunk, int value_head) {
  constexpr int kThreads = Shape<K, V>::kThreads;
  const int64_t block = int64_t{chunk} * args.G + value_head;
  copy_bytes_async<kGateRows * kChunk * 4, kThreads>(s.gates,
                                                     args.gates + block * kGateRows * kChunk);
  copy_block_async<V, kChunk, kThreads>(s.residual, args.residual + block * kChunk * V);
  copy_rows_async<V, kThreads>(s.d_o, args.d_o + (place.first_row * args.G + value_head) * V,
                               int64_t{args.G} * V, place.rows);
  copy_rows_async<V, kThreads>(s.dv,
                               args.dv + place.first_row * args.dv_stride + int64_t{value_head} * V,
                               args.dv_stride, place.rows);
  copy_block_async<K, V, kThreads>(s.state, args.states + block * K * V);
  copy_block_async<K, V, kThreads>(s.d_state, args.d_states + block * K * V);
  copy_async_commit();
}

// Lower tile `tile` of the two C x C gradients, and its part of X's sums.
template <int K, int V>
__device__ __forceinline__ void multiply_tile(Shared<K, V>& s, int tile, float scale) {
  const int g = fragment_row();
  const int t2 = fragment_column();
  const int row = lower_tile_row(tile);
  const int column = tile - lower_tile(row, 0);
  float p[2][4] = {};   // q k^T
  float m[2][4] = {};   // k k^T
  float dp[2][4] = {};  // do z^T
  float dm[2][4] = {};  // dv z^T
  uint32_t a[4];
  uint32_t b[4];
#pragma unroll
  for (int c = 0; c < K; c += kTile) {
    load_right<Tile<K>>(b, s.k, kTile * column, c);
    load_left<Tile<K>>(a, s.q, kTile * row, c);
    multiply(p[0], p[1], a, b);
    load_left<Tile<K>>(a, s.k, kTile * row, c);
    multiply(m[0], m[1], a, b);
  }
#pragma unroll
  for (int c = 0; c < V; c += kTile) {
    load_right<Tile<V>>(b, s.residual, kTile * column, c);
    load_left<Tile<V>>(a, s.d_o, kTile * row, c);
    multiply(dp[0], dp[1], a, b);
    load_left<Tile<V>>(a, s.dv, kTile * row, c);
    multiply(dm[0], dm[1], a, b);
  }
  const float* sum = s.gates + kGateSum * kChunk;
  const float* beta = s.gates + kGateBeta * kChunk;
  float row_sum[2] = {0, 0};
  float column_sum[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = 8 * half + t2;
    const float2 sum_column = load_pair(sum + kTile * column + j);
    const float2 beta_column = load_pair(beta + kTile * column + j);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int i = g + 8 * upper;
      const float sum_row = sum[kTile * row + i];
      float d_score[2];
      float d_key[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float decay = exp2_approximate(sum_row - (e == 0 ? sum_column.x : sum_column.y));
        const float weight = e == 0 ? beta_column.x : beta_column.y;
        const bool strict = row > column || i > j + e;
        const bool kept = strict || i == j + e;
        // Selects: the exponent of a masked pair is positive and may have overflowed.
        const float factor = kept ? decay * weight : 0.0F;
        d_score[e] = scale * factor * dp[half][2 * upper + e];
        d_key[e] = strict ? -factor * dm[half][2 * upper + e] : 0.0F;
        const float x =
            strict ? d_score[e] * p[half][2 * upper + e] + d_key[e] * m[half][2 * upper + e] : 0.0F;
        row_sum[upper] += x;
        column_sum[half][e] += x;
      }
      const int at = tile * kTileElements + SmallTile::at(i, j);
      const SplitWord word = split(d_score[0], d_score[1]);
      store_word(s.d_scores + at, word.high);
      store_word(s.d_scores_low + at, word.low);
      store_word(s.d_keys + at, pack_bf16(d_key[0], d_key[1]));
    }
  }
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const float total = sum_over_lanes<4>(row_sum[upper]);
    if (lane_id() % 4 == 0) s.row_sum[column][kTile * row + g + 8 * upper] = total;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float total = column_sum[half][e];
#pragma unroll
      for (int distance = 4; distance < kWarpSize; distance *= 2) {
        total += __shfl_xor_sync(kAllLanes, total, distance, kWarpSize);
      }
      if (g == 0) s.column_sum[row][kTile * column + 8 * half + t2 + e] = total;
    }
  }
}

// dg of the chunk from all sums; one warp.
template <int K, int V>
__device__ __forceinline__ void finish_gates(const Shared<K, V>& s, float* dg, int64_t stride,
                                             int rows) {
  using S = Shape<K, V>;
  const int lane = lane_id();
  float d[2];
  float last = 0;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = 2 * lane + e;
    const int tile = row / kTile;
    float sum = 0;
#pragma unroll
    for (int other = 0; other < kTileRows; ++other) {
      if (other <= tile) sum += s.row_sum[other][row];
      if (other >= tile) sum -= s.column_sum[other][row];
    }
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      sum += s.from_state[part][row] - s.from_d_state[part][row];
      last += s.from_d_state[part][row];
    }
    d[e] = sum;
  }
  last = sum_over_lanes<kWarpSize>(last);
  float product = 0;
#pragma unroll
  for (int warp = 0; warp < S::kWarps; ++warp) product += s.state_product[warp];
  last += s.decay * product;
  // From here to the end of the chunk; rows past the end add nothing.
  const float own = d[0] + d[1];
  float sum = own;
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const float other = __shfl_down_sync(kAllLanes, sum, distance, kWarpSize);
    if (lane + distance < kWarpSize) sum += other;
  }
  if (2 * lane < rows) dg[2 * lane * stride] = sum + last;
  if (2 * lane + 1 < rows) dg[(2 * lane + 1) * stride] = sum - own + d[1] + last;
}

// Grid: one block per (chunk, q/k head); value heads in turn. Bytes per token: q, k, dq, dk 8 K per
// q/k head; per value head do, dv, z 6 V, the states and their gradients K V / 16, gates 16, dg 4.
template <int K, int V>
__global__ void __launch_bounds__(Shape<K, V>::kThreads, Shape<K, V>::kBlocksPerProcessor)
    gated_delta_rule_backward_gradients_scalar_kernel(const DeltaArguments args) {
  using S = Shape<K, V>;
  auto& s = *dynamic_shared<Shared<K, V>>();
  const int chunk = static_cast<int>(blockIdx.x) / args.H;
  const int head = static_cast<int>(blockIdx.x) % args.H;
  const int group = args.G / args.H;
  const ChunkPlace place = place_of_chunk(args.map, chunk);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_id();
  const int g = fragment_row();
  const int t2 = fragment_column();
  const int tile_row = warp % kTileRows;
  const int part = warp / kTileRows;
  const int first_channel = part * S::kWidth;
  const int64_t first_key = (place.first_row * args.H + head) * K;

  copy_rows_async<K, S::kThreads>(s.q, args.q + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<K, S::kThreads>(s.k, args.k + first_key, int64_t{args.H} * K, place.rows);
  start_loads(s, args, place, chunk, head * group);

  float dq[S::kWidth / 8][4];  // (16 rows, kWidth)
  float dk[S::kWidth / 8][4];
  set_zero(dq);
  set_zero(dk);

#pragma unroll 1
  for (int member = 0; member < group; ++member) {
    const int value_head = head * group + member;
    copy_async_wait<0>();
    __syncthreads();

    for (int tile = warp; tile < kLowerTiles; tile += S::kWarps)
      multiply_tile<K, V>(s, tile, args.scale);

    float product = 0;
    if (has_exact_state(args, place)) {
      const StateProduct<K, V> exact(args, place, value_head, s.state, s.d_state);
      for (int i = thread; i < V * K; i += S::kThreads) product += exact(i / V, i % V);
    } else {
      for (int i = thread; i < V * K / 2; i += S::kThreads) {
        const uint32_t x = load_word(s.state + 2 * i);
        const uint32_t y = load_word(s.d_state + 2 * i);
        product += low_bf16(x) * low_bf16(y) + high_bf16(x) * high_bf16(y);
      }
    }
    product = sum_over_lanes<kWarpSize>(product);
    if (lane_id() == 0) s.state_product[warp] = product;
    if (thread == 0) s.decay = s.gates[kGateGrown * kChunk + kChunk - 1];

    // The terms of the entering and the leaving state.
    float grown[2];
    float left[2];
    float dot[2] = {0, 0};          // q . (first term of dq) + k . (first term of dk)
    float dot_d_state[2] = {0, 0};  // k . (term with dS)
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int row = kTile * tile_row + g + 8 * upper;
      grown[upper] = s.gates[kGateGrown * kChunk + row];
      left[upper] = s.gates[kGateLeft * kChunk + row] * s.gates[kGateBeta * kChunk + row];
    }
#pragma unroll
    for (int first = 0; first < S::kWidth; first += S::kStep) {
      float by_o[S::kStep / 8][4];
      float by_v[S::kStep / 8][4];
      float by_z[S::kStep / 8][4];
      set_zero(by_o);
      set_zero(by_v);
      set_zero(by_z);
#pragma unroll
      for (int c = 0; c < V; c += kTile) {
        uint32_t a_o[4];
        uint32_t a_v[4];
        uint32_t a_z[4];
        load_left<Tile<V>>(a_o, s.d_o, kTile * tile_row, c);
        load_left<Tile<V>>(a_v, s.dv, kTile * tile_row, c);
        load_left<Tile<V>>(a_z, s.residual, kTile * tile_row, c);
#pragma unroll
        for (int n = 0; n < S::kStep / kTile; ++n) {
          uint32_t b[4];
          load_right_transposed<Tile<K>>(b, s.state, c, first_channel + first + kTile * n);
          multiply(by_o[2 * n], by_o[2 * n + 1], a_o, b);
          multiply(by_v[2 * n], by_v[2 * n + 1], a_v, b);
          load_right_transposed<Tile<K>>(b, s.d_state, c, first_channel + first + kTile * n);
          multiply(by_z[2 * n], by_z[2 * n + 1], a_z, b);
        }
      }
#pragma unroll
      for (int n = 0; n < S::kStep / 8; ++n) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const int at =
              Tile<K>::at(kTile * tile_row + g + 8 * upper, first_channel + first + 8 * n + t2);
          const uint32_t q = load_word(s.q + at);
          const uint32_t k = load_word(s.k + at);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float q_e = e == 0 ? low_bf16(q) : high_bf16(q);
            const float k_e = e == 0 ? low_bf16(k) : high_bf16(k);
            const float d_q = args.scale * grown[upper] * by_o[n][2 * upper + e];
            const float d_k = -grown[upper] * by_v[n][2 * upper + e];
            const float d_k_left = left[upper] * by_z[n][2 * upper + e];
            dq[first / 8 + n][2 * upper + e] += d_q;
            dk[first / 8 + n][2 * upper + e] += d_k + d_k_left;
            dot[upper] += q_e * d_q + k_e * d_k;
            dot_d_state[upper] += k_e * d_k_left;
          }
        }
      }
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const float x = sum_over_lanes<4>(dot[upper]);
      const float y = sum_over_lanes<4>(dot_d_state[upper]);
      if (lane_id() % 4 == 0) {
        s.from_state[part][kTile * tile_row + g + 8 * upper] = x;
        s.from_d_state[part][kTile * tile_row + g + 8 * upper] = y;
      }
    }
    __syncthreads();
    // From here on nothing that start_loads fills is read, so the next value head may come.
    if (member + 1 < group) start_loads(s, args, place, chunk, value_head + 1);
    if (warp == S::kWarps - 1) {
      finish_gates<K, V>(s, args.dg + place.first_row * args.G + value_head, args.G, place.rows);
    }

    // Rows of both gradients meet earlier rows.
    for (int column = 0; column <= tile_row; ++column) {
      uint32_t a_p[4];
      uint32_t a_p_low[4];
      uint32_t a_m[4];
      load_left<SmallTile>(a_p, s.d_scores + lower_tile(tile_row, column) * kTileElements, 0, 0);
      load_left<SmallTile>(a_p_low, s.d_scores_low + lower_tile(tile_row, column) * kTileElements,
                           0, 0);
      load_left<SmallTile>(a_m, s.d_keys + lower_tile(tile_row, column) * kTileElements, 0, 0);
#pragma unroll
      for (int n = 0; n < S::kWidth / kTile; ++n) {
        uint32_t b[4];
        load_right_transposed<Tile<K>>(b, s.k, kTile * column, first_channel + kTile * n);
        multiply(dq[2 * n], dq[2 * n + 1], a_p, b);
        multiply(dq[2 * n], dq[2 * n + 1], a_p_low, b);
        multiply(dk[2 * n], dk[2 * n + 1], a_m, b);
      }
    }
    // Columns meet later rows.
    for (int row = tile_row; row < kTileRows; ++row) {
      uint32_t a_p[4];
      uint32_t a_m[4];
      load_left_transposed<SmallTile>(a_p, s.d_scores + lower_tile(row, tile_row) * kTileElements,
                                      0, 0);
      load_left_transposed<SmallTile>(a_m, s.d_keys + lower_tile(row, tile_row) * kTileElements, 0,
                                      0);
#pragma unroll
      for (int n = 0; n < S::kWidth / kTile; ++n) {
        uint32_t b[4];
        load_right_transposed<Tile<K>>(b, s.q, kTile * row, first_channel + kTile * n);
        multiply(dk[2 * n], dk[2 * n + 1], a_p, b);
        load_right_transposed<Tile<K>>(b, s.k, kTile * row, first_channel + kTile * n);
        multiply(dk[2 * n], dk[2 * n + 1], a_m, b);
      }
    }
  }

  // Out through q's and k's tiles, once no warp reads them any more.
  __syncthreads();
#pragma unroll
  for (int n = 0; n < S::kWidth / 8; ++n) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int at = Tile<K>::at(kTile * tile_row + g + 8 * upper, first_channel + 8 * n + t2);
      store_word(s.q + at, pack_bf16(dq[n][2 * upper], dq[n][2 * upper + 1]));
      store_word(s.k + at, pack_bf16(dk[n][2 * upper], dk[n][2 * upper + 1]));
    }
  }
  __syncthreads();
  constexpr int kUnits = Tile<K>::kUnits;
  for (int i = thread; i < kChunk * kUnits; i += S::kThreads) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    if (row >= place.rows) continue;
    const int64_t to = first_key + int64_t{row} * args.H * K + 8 * unit;
    *reinterpret_cast<uint4*>(args.dq + to) =
        *reinterpret_cast<const uint4*>(s.q + Tile<K>::at(row, 8 * unit));
    *reinterpret_cast<uint4*>(args.dk + to) =
        *reinterpret_cast<const uint4*>(s.k + Tile<K>::at(row, 8 * unit));
  }
}

using Sizes = HeadSizes<HeadSize<16, 16>, HeadSize<16, 32>, HeadSize<64, 64>, HeadSize<64, 128>,
                        HeadSize<128, 128>>;

}  // namespace

int64_t gradients_scalar_shared_bytes(int64_t K, int64_t V) {
  return with_head_size(Sizes{}, K, V, [](auto head) {
    return int64_t{sizeof(Shared<decltype(head)::K, decltype(head)::V>)};
  });
}

void gradients_scalar(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks, int64_t K,
                      int64_t V) {
  with_head_size(Sizes{}, K, V, [&](auto head) {
    using Head = decltype(head);
    const auto kernel = gated_delta_rule_backward_gradients_scalar_kernel<Head::K, Head::V>;
    constexpr size_t kBytes = sizeof(Shared<Head::K, Head::V>);
    allow_shared_bytes(kernel, kBytes);
    launch(device, "gated_delta_rule_backward_gradients_scalar_kernel", kernel, num_chunks * args.H,
           Shape<Head::K, Head::V>::kThreads, kBytes, args);
  });
}

}  // namespace deltatrain::backend::cuda::delta
