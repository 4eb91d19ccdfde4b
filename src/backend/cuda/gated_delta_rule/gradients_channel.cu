// dq, dk and dg of every chunk where a value head has one decay per key channel and token (KDA).
//
// As in gradients_scalar.cu, but exp(G_i - G_j) differs by channel, so the C x C gradients meet
// rows that carry it: tiles below the diagonal split it at the earlier end of the later rows (for
// sums over j) or at the later end of the earlier rows (for sums over i), both factors at most 1. A
// gated row enters as the sum of two bf16 numbers, so that the same pair contributes to row i and
// to row j alike and dG = q dq + k dk(as row) - k dk(as column) keeps the little that is left when
// decay is strong. Tiles on the diagonal run in f32, one thread per channel, with products of
// single decays. Their i = j terms cancel in dG and are left out.
#include "backend/cuda/gated_delta_rule/channel_gates.cuh"
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
  static constexpr int kWidth = K < 32 ? K : 32;
  static constexpr int kParts = K / kWidth;
  static constexpr int kWarps = kTileRows * kParts;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kBlocksPerProcessor = K <= 32 ? 3 : 1;
  static_assert(kTileRows * K <= kThreads);  // one thread per channel of a tile
};

template <int K, int V>
struct alignas(16) Shared {
  Bf16 q[kChunk * K];
  Bf16 k[kChunk * K];
  float sum[kChunk * K];          // FloatTile; the gates at first
  Bf16 d_scores[kLowerElements];  // scale dP, as the sum of two: with correlated keys much of dq
                                  // cancels
  Bf16 d_scores_low[kLowerElements];
  Bf16 d_keys[kLowerElements];  // dM
  float2 diagonal[kTileRows][kTile]
                 [kTile];  // both, f32, of the diagonal tiles; dP with its diagonal
  float totals[GateParts<K, Shape<K, V>::kThreads>::kParts * K];
  float beta[kChunk];
  float d_state_sum[kTileRows][K];    // sum over 16 rows of k (term with dS)
  float state_product[kTileRows][K];  // sum over a quarter of V of S dS
  float dg_sum[kTileRows][K];
  union {
    struct {
      Bf16 d_o[kChunk * V];
      Bf16 dv[kChunk * V];
      Bf16 residual[kChunk * V];
      Bf16 state[V * K];
      Bf16 d_state[V * K];
    } in;
    struct {  // FloatTiles: all terms but those of the diagonal tiles
      float dq[kChunk * K];
      float dk_row[kChunk * K];
      float dk_column[kChunk * K];
    } out;
  };
};

// Lower tile `tile` of the two C x C gradients.
template <int K, int V>
__device__ __forceinline__ void multiply_tile(Shared<K, V>& s, int tile, float scale) {
  const int g = fragment_row();
  const int t2 = fragment_column();
  const int row = lower_tile_row(tile);
  const int column = tile - lower_tile(row, 0);
  float dp[2][4] = {};  // do z^T
  float dm[2][4] = {};  // dv z^T
#pragma unroll
  for (int c = 0; c < V; c += kTile) {
    uint32_t a[4];
    uint32_t b[4];
    load_right<Tile<V>>(b, s.in.residual, kTile * column, c);
    load_left<Tile<V>>(a, s.in.d_o, kTile * row, c);
    multiply(dp[0], dp[1], a, b);
    load_left<Tile<V>>(a, s.in.dv, kTile * row, c);
    multiply(dm[0], dm[1], a, b);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = 8 * half + t2;
    const float2 beta = load_pair(s.beta + kTile * column + j);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int i = g + 8 * upper;
      float2 d_score = make_float2(scale * beta.x * dp[half][2 * upper],
                                   scale * beta.y * dp[half][2 * upper + 1]);
      float2 d_key = make_float2(-beta.x * dm[half][2 * upper], -beta.y * dm[half][2 * upper + 1]);
      if (row == column) {
        s.diagonal[row][i][j] = make_float2(i >= j ? d_score.x : 0.0F, i > j ? d_key.x : 0.0F);
        s.diagonal[row][i][j + 1] =
            make_float2(i >= j + 1 ? d_score.y : 0.0F, i > j + 1 ? d_key.y : 0.0F);
      } else {
        const int at = tile * kTileElements + SmallTile::at(i, j);
        const SplitWord word = split(d_score.x, d_score.y);
        store_word(s.d_scores + at, word.high);
        store_word(s.d_scores_low + at, word.low);
        store_word(s.d_keys + at, pack_bf16(d_key.x, d_key.y));
      }
    }
  }
}

__device__ __forceinline__ void multiply_split(float (&d)[4], const uint32_t (&a)[4],
                                               const SplitWord (&b)[2]) {
  mma_16x8x16_bf16(d, a, b[0].high, b[1].high);
  mma_16x8x16_bf16(d, a, b[0].low, b[1].low);
}

// The left operand split, too; low times low is below f32's rounding of the sum.
__device__ __forceinline__ void multiply_split(float (&d)[4], const uint32_t (&a_high)[4],
                                               const uint32_t (&a_low)[4],
                                               const SplitWord (&b)[2]) {
  multiply_split(d, a_high, b);
  mma_16x8x16_bf16(d, a_low, b[0].high, b[1].high);
}

// Grid: one block per (chunk, value head). Bytes per token and value head: q, k, dq, dk 8 K, g and
// dg 8 K, do, dv, z 6 V, states and their gradients K V / 16.
template <int K, int V>
__global__ void __launch_bounds__(Shape<K, V>::kThreads, Shape<K, V>::kBlocksPerProcessor)
    gated_delta_rule_backward_gradients_channel_kernel(const DeltaArguments args) {
  using S = Shape<K, V>;
  constexpr int kColumns = S::kWidth / 8;
  auto& s = *dynamic_shared<Shared<K, V>>();
  const int chunk = static_cast<int>(blockIdx.x) / args.G;
  const int value_head = static_cast<int>(blockIdx.x) % args.G;
  const int head = value_head / (args.G / args.H);
  const ChunkPlace place = place_of_chunk(args.map, chunk);
  const int64_t block = int64_t{chunk} * args.G + value_head;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_id();
  const int g = fragment_row();
  const int t2 = fragment_column();
  const int tile_row = warp % kTileRows;
  const int first_channel = warp / kTileRows * S::kWidth;

  copy_float_rows_async<K, S::kThreads>(s.sum, args.g + (place.first_row * args.G + value_head) * K,
                                        int64_t{args.G} * K, place.rows);
  copy_bytes_async<kChunk * 4, S::kThreads>(s.beta, args.gates + block * kChunk);
  copy_async_commit();
  const int64_t first_key = (place.first_row * args.H + head) * K;
  copy_block_async<V, kChunk, S::kThreads>(s.in.residual, args.residual + block * kChunk * V);
  copy_rows_async<V, S::kThreads>(s.in.d_o, args.d_o + (place.first_row * args.G + value_head) * V,
                                  int64_t{args.G} * V, place.rows);
  copy_rows_async<V, S::kThreads>(
      s.in.dv, args.dv + place.first_row * args.dv_stride + int64_t{value_head} * V, args.dv_stride,
      place.rows);
  copy_block_async<K, V, S::kThreads>(s.in.state, args.states + block * K * V);
  copy_block_async<K, V, S::kThreads>(s.in.d_state, args.d_states + block * K * V);
  copy_rows_async<K, S::kThreads>(s.q, args.q + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<K, S::kThreads>(s.k, args.k + first_key, int64_t{args.H} * K, place.rows);
  copy_async_commit();
  copy_async_wait<1>();
  __syncthreads();
  cumulate_gates<K, S::kThreads>(
      s.sum, s.totals, [&](int row, int channel, float2, float2 sum, float2) {
        *reinterpret_cast<float2*>(s.sum + FloatTile<K>::at(row, channel)) = sum;
      });
  copy_async_wait<0>();
  __syncthreads();

  for (int tile = warp; tile < kLowerTiles; tile += S::kWarps)
    multiply_tile<K, V>(s, tile, args.scale);

  // S . dS by channel, a quarter of V per thread.
  if (thread < kTileRows * K) {
    const int channel = thread % K;
    const int quarter = thread / K;
    float product = 0;
    const int first = quarter * (V / kTileRows);
    if (has_exact_state(args, place)) {
      const StateProduct<K, V> exact(args, place, value_head, s.in.state, s.in.d_state);
      for (int v = first; v < first + V / kTileRows; ++v) product += exact(channel, v);
    } else {
#pragma unroll 4
      for (int v = first; v < first + V / kTileRows; ++v) {
        const int at = Tile<K>::at(v, channel);
        product += to_float(s.in.state[at]) * to_float(s.in.d_state[at]);
      }
    }
    s.state_product[quarter][channel] = product;
  }

  // The terms of the entering and the leaving state.
  float dq[kColumns][4];  // (16 rows, kWidth)
  float dk_row[kColumns][4];
  float dk_column[kColumns][4];
  set_zero(dq);
  set_zero(dk_row);
  set_zero(dk_column);
#pragma unroll
  for (int c = 0; c < V; c += kTile) {
    uint32_t a_o[4];
    uint32_t a_v[4];
    uint32_t a_z[4];
    load_left<Tile<V>>(a_o, s.in.d_o, kTile * tile_row, c);
    load_left<Tile<V>>(a_v, s.in.dv, kTile * tile_row, c);
    load_left<Tile<V>>(a_z, s.in.residual, kTile * tile_row, c);
#pragma unroll
    for (int n = 0; n < kColumns / 2; ++n) {
      uint32_t b[4];
      load_right_transposed<Tile<K>>(b, s.in.state, c, first_channel + kTile * n);
      multiply(dq[2 * n], dq[2 * n + 1], a_o, b);
      multiply(dk_row[2 * n], dk_row[2 * n + 1], a_v, b);
      load_right_transposed<Tile<K>>(b, s.in.d_state, c, first_channel + kTile * n);
      multiply(dk_column[2 * n], dk_column[2 * n + 1], a_z, b);
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int channel = first_channel + 8 * n + t2;
    const float2 total = load_pair(s.sum + FloatTile<K>::at(kChunk - 1, channel));
    float2 d_state_sum = make_float2(0, 0);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int row = kTile * tile_row + g + 8 * upper;
      const float2 sum = load_pair(s.sum + FloatTile<K>::at(row, channel));
      const float grown_x = exp2_approximate(sum.x);
      const float grown_y = exp2_approximate(sum.y);
      const float beta = s.beta[row];
      dq[n][2 * upper] *= args.scale * grown_x;
      dq[n][2 * upper + 1] *= args.scale * grown_y;
      dk_row[n][2 * upper] *= -grown_x;
      dk_row[n][2 * upper + 1] *= -grown_y;
      dk_column[n][2 * upper] *= beta * exp2_approximate(total.x - sum.x);
      dk_column[n][2 * upper + 1] *= beta * exp2_approximate(total.y - sum.y);
      const uint32_t k = load_word(s.k + Tile<K>::at(row, channel));
      d_state_sum.x += low_bf16(k) * dk_column[n][2 * upper];
      d_state_sum.y += high_bf16(k) * dk_column[n][2 * upper + 1];
    }
#pragma unroll
    for (int distance = 4; distance < kWarpSize; distance *= 2) {
      d_state_sum.x += __shfl_xor_sync(kAllLanes, d_state_sum.x, distance, kWarpSize);
      d_state_sum.y += __shfl_xor_sync(kAllLanes, d_state_sum.y, distance, kWarpSize);
    }
    if (g == 0) *reinterpret_cast<float2*>(&s.d_state_sum[tile_row][channel]) = d_state_sum;
  }
  __syncthreads();  // the C x C gradients are complete, and nothing of V's width is read any more

  // Tiles below the diagonal: these rows meet earlier rows.
  if (tile_row > 0) {
    float by_p[kColumns][4];
    float by_m[kColumns][4];
    set_zero(by_p);
    set_zero(by_m);
#pragma unroll 1
    for (int column = 0; column < tile_row; ++column) {
      uint32_t a_p[4];
      uint32_t a_p_low[4];
      uint32_t a_m[4];
      load_left<SmallTile>(a_p, s.d_scores + lower_tile(tile_row, column) * kTileElements, 0, 0);
      load_left<SmallTile>(a_p_low, s.d_scores_low + lower_tile(tile_row, column) * kTileElements,
                           0, 0);
      load_left<SmallTile>(a_m, s.d_keys + lower_tile(tile_row, column) * kTileElements, 0, 0);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int channel = first_channel + 8 * n + g;
        const float reference = s.sum[FloatTile<K>::at(kTile * tile_row, channel)];
        SplitWord b[2];
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          float x[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int row = kTile * column + 8 * lower + t2 + e;
            x[e] = to_float(s.k[Tile<K>::at(row, channel)]) *
                   exp2_approximate(reference - s.sum[FloatTile<K>::at(row, channel)]);
          }
          b[lower] = split(x[0], x[1]);
        }
        multiply_split(by_p[n], a_p, a_p_low, b);
        multiply_split(by_m[n], a_m, b);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int channel = first_channel + 8 * n + t2;
      const float2 reference = load_pair(s.sum + FloatTile<K>::at(kTile * tile_row, channel));
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const float2 sum =
            load_pair(s.sum + FloatTile<K>::at(kTile * tile_row + g + 8 * upper, channel));
        const float x = exp2_approximate(sum.x - reference.x);
        const float y = exp2_approximate(sum.y - reference.y);
        dq[n][2 * upper] += x * by_p[n][2 * upper];
        dq[n][2 * upper + 1] += y * by_p[n][2 * upper + 1];
        dk_row[n][2 * upper] += x * by_m[n][2 * upper];
        dk_row[n][2 * upper + 1] += y * by_m[n][2 * upper + 1];
      }
    }
  }
  // These rows meet later rows.
  if (tile_row + 1 < kTileRows) {
    float by_column[kColumns][4];
    set_zero(by_column);
    const int last = kTile * tile_row + kTile - 1;
#pragma unroll 1
    for (int row_tile = tile_row + 1; row_tile < kTileRows; ++row_tile) {
      uint32_t a_p[4];
      uint32_t a_p_low[4];
      uint32_t a_m[4];
      load_left_transposed<SmallTile>(
          a_p, s.d_scores + lower_tile(row_tile, tile_row) * kTileElements, 0, 0);
      load_left_transposed<SmallTile>(
          a_p_low, s.d_scores_low + lower_tile(row_tile, tile_row) * kTileElements, 0, 0);
      load_left_transposed<SmallTile>(
          a_m, s.d_keys + lower_tile(row_tile, tile_row) * kTileElements, 0, 0);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int channel = first_channel + 8 * n + g;
        const float reference = s.sum[FloatTile<K>::at(last, channel)];
        SplitWord b_q[2];
        SplitWord b_k[2];
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          float x[2];
          float y[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int row = kTile * row_tile + 8 * lower + t2 + e;
            const float decay = exp2_approximate(s.sum[FloatTile<K>::at(row, channel)] - reference);
            x[e] = to_float(s.q[Tile<K>::at(row, channel)]) * decay;
            y[e] = to_float(s.k[Tile<K>::at(row, channel)]) * decay;
          }
          b_q[lower] = split(x[0], x[1]);
          b_k[lower] = split(y[0], y[1]);
        }
        multiply_split(by_column[n], a_p, a_p_low, b_q);
        multiply_split(by_column[n], a_m, b_k);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int channel = first_channel + 8 * n + t2;
      const float2 reference = load_pair(s.sum + FloatTile<K>::at(last, channel));
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const float2 sum =
            load_pair(s.sum + FloatTile<K>::at(kTile * tile_row + g + 8 * upper, channel));
        dk_column[n][2 * upper] += exp2_approximate(reference.x - sum.x) * by_column[n][2 * upper];
        dk_column[n][2 * upper + 1] +=
            exp2_approximate(reference.y - sum.y) * by_column[n][2 * upper + 1];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int at = FloatTile<K>::at(kTile * tile_row + g + 8 * upper, first_channel + 8 * n + t2);
      *reinterpret_cast<float2*>(s.out.dq + at) =
          make_float2(dq[n][2 * upper], dq[n][2 * upper + 1]);
      *reinterpret_cast<float2*>(s.out.dk_row + at) =
          make_float2(dk_row[n][2 * upper], dk_row[n][2 * upper + 1]);
      *reinterpret_cast<float2*>(s.out.dk_column + at) =
          make_float2(dk_column[n][2 * upper], dk_column[n][2 * upper + 1]);
    }
  }
  __syncthreads();

  // Diagonal tiles, and everything that goes by channel: thread = (tile, channel).
  const int tile = thread / K;
  const int channel = thread % K;
  const bool active = tile < kTileRows;
  float q[kTile];
  float k[kTile];
  float d_q[kTile];
  float d_k[kTile];  // as row
  float dg[kTile];
  float dg_total = 0;
  if (active) {
    float decay[kTile];
    float previous = 0;
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const int row = kTile * tile + i;
      q[i] = to_float(s.q[Tile<K>::at(row, channel)]);
      k[i] = to_float(s.k[Tile<K>::at(row, channel)]);
      const float sum = s.sum[FloatTile<K>::at(row, channel)];
      decay[i] = exp2_approximate(sum - (i == 0 ? sum : previous));
      previous = sum;
      d_q[i] = s.out.dq[FloatTile<K>::at(row, channel)];
      d_k[i] = s.out.dk_row[FloatTile<K>::at(row, channel)];
    }
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      float key = k[j];
      float product = 1;
      float column = s.out.dk_column[FloatTile<K>::at(kTile * tile + j, channel)];
#pragma unroll
      for (int i = j + 1; i < kTile; ++i) {
        const float2 d = s.diagonal[tile][i][j];
        product *= decay[i];
        key = k[j] * product;
        d_q[i] += d.x * key;
        d_k[i] += d.y * key;
        column += product * (d.x * q[i] + d.y * k[i]);
      }
      // Row j got all its earlier columns in earlier rounds, so its sums are complete.
      dg[j] = q[j] * d_q[j] + k[j] * d_k[j] - k[j] * column;
      dg_total += dg[j];
      const float d_jj = s.diagonal[tile][j][j].x;
      d_q[j] += d_jj * k[j];
      d_k[j] += column + d_jj * q[j];
    }
    s.dg_sum[tile][channel] = dg_total;
  }
  __syncthreads();
  if (!active) return;
  float later = 0;  // dG of the chunk's last row, then of all later rows
  float product = 0;
#pragma unroll
  for (int other = 0; other < kTileRows; ++other) {
    later += s.d_state_sum[other][channel];
    product += s.state_product[other][channel];
  }
  later += exp2_approximate(s.sum[FloatTile<K>::at(kChunk - 1, channel)]) * product;
  for (int other = kTileRows - 1; other > tile; --other) later += s.dg_sum[other][channel];
#pragma unroll
  for (int i = kTile - 1; i >= 0; --i) {
    later += dg[i];
    const int row = kTile * tile + i;
    if (row >= place.rows) continue;
    const int64_t of_value_head = ((place.first_row + row) * args.G + value_head) * K + channel;
    args.dg[of_value_head] = later;
    if (args.dq_of_head != nullptr) {
      args.dq_of_head[of_value_head] = d_q[i];
      args.dk_of_head[of_value_head] = d_k[i];
    } else {
      args.dq[first_key + int64_t{row} * args.H * K + channel] = __float2bfloat16_rn(d_q[i]);
      args.dk[first_key + int64_t{row} * args.H * K + channel] = __float2bfloat16_rn(d_k[i]);
    }
  }
}

using Sizes = HeadSizes<HeadSize<16, 16>, HeadSize<16, 32>, HeadSize<32, 64>, HeadSize<64, 64>,
                        HeadSize<128, 128>>;

}  // namespace

int64_t gradients_channel_shared_bytes(int64_t K, int64_t V) {
  return with_head_size(Sizes{}, K, V, [](auto head) {
    return int64_t{sizeof(Shared<decltype(head)::K, decltype(head)::V>)};
  });
}

void gradients_channel(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks,
                       int64_t K, int64_t V) {
  with_head_size(Sizes{}, K, V, [&](auto head) {
    using Head = decltype(head);
    const auto kernel = gated_delta_rule_backward_gradients_channel_kernel<Head::K, Head::V>;
    constexpr size_t kBytes = sizeof(Shared<Head::K, Head::V>);
    allow_shared_bytes(kernel, kBytes);
    launch(device, "gated_delta_rule_backward_gradients_channel_kernel", kernel,
           num_chunks * args.G, Shape<Head::K, Head::V>::kThreads, kBytes, args);
  });
}

}  // namespace deltatrain::backend::cuda::delta
