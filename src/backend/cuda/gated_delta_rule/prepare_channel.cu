// P and F of every chunk where a value head has one decay per key channel and token (KDA).
//
// exp(G_i - G_j) differs by channel, so products need it inside the sum. Off the diagonal it is
// split at the first row r of the later block, exp(G_i - G_r) exp(G_r - G_j), both at most 1:
// blocks of 16 x 16, then the 8 x 8 block below the diagonal of each 16 x 16. The 8 x 8 blocks on
// the diagonal take products of single steps' decays, in f32.
#include "backend/cuda/gated_delta_rule/channel_gates.cuh"
#include "backend/cuda/gated_delta_rule/feedback.cuh"
#include "backend/cuda/gated_delta_rule/head_sizes.cuh"
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kHalf = kTile / 2;

template <int K>
struct Shape {
  static constexpr int kThreads = (K <= 64 ? 4 : 8) * kWarpSize;
  static constexpr int kWarps = kThreads / kWarpSize;
  static constexpr int kBlocksPerProcessor = K <= 32 ? 5 : K <= 64 ? 3 : 1;
};

template <int K>
struct alignas(16) Shared {
  Bf16 q[kChunk * K];
  Bf16 k[kChunk * K];
  float sum[kChunk * K];  // FloatTile; the gates at first
  float totals[GateParts<K, Shape<K>::kThreads>::kParts * K];
  FeedbackSpace feedback;
  __half scores[kLowerElements];

  // exp(g), a FloatTile [64, K]: where it fits, in the part of `feedback` that is filled after its
  // last use.
  static constexpr bool kDecayInFeedback =
      sizeof(float) * kChunk * K <=
      sizeof(FeedbackSpace::left) + sizeof(FeedbackSpace::right) + sizeof(FeedbackSpace::feedback);
  float own_decay[kDecayInFeedback ? 4 : kChunk * K];
  __device__ __forceinline__ float* decay() {
    return kDecayInFeedback ? reinterpret_cast<float*>(feedback.left) : own_decay;
  }
};

// (word of two elements) * (2^x, 2^y)
__device__ __forceinline__ uint32_t scale_word(uint32_t word, float x, float y) {
  return pack_bf16(low_bf16(word) * exp2_approximate(x), high_bf16(word) * exp2_approximate(y));
}

// Tiles (row, column) of P and M with row > column.
template <int K>
__device__ __forceinline__ void multiply_below(Shared<K>& s, int row, int column, float scale) {
  const int g = fragment_row();
  const int t2 = fragment_column();
  float p[2][4] = {};
  float m[2][4] = {};
#pragma unroll
  for (int c = 0; c < K; c += kTile) {
    uint32_t a_q[4];
    uint32_t a_k[4];
    uint32_t b[4];
#pragma unroll
    for (int right = 0; right < 2; ++right) {
      const int channel = c + 8 * right + t2;
      const float2 reference = load_pair(s.sum + FloatTile<K>::at(kTile * row, channel));
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int i = kTile * row + g + 8 * upper;
        const float2 sum = load_pair(s.sum + FloatTile<K>::at(i, channel));
        const float x = exp2_approximate(sum.x - reference.x);
        const float y = exp2_approximate(sum.y - reference.y);
        const uint32_t q = load_word(s.q + Tile<K>::at(i, channel));
        const uint32_t k = load_word(s.k + Tile<K>::at(i, channel));
        a_q[upper + 2 * right] = pack_bf16(low_bf16(q) * x, high_bf16(q) * y);
        a_k[upper + 2 * right] = pack_bf16(low_bf16(k) * x, high_bf16(k) * y);
        const int j = kTile * column + g + 8 * upper;
        const float2 earlier = load_pair(s.sum + FloatTile<K>::at(j, channel));
        b[2 * upper + right] = scale_word(load_word(s.k + Tile<K>::at(j, channel)),
                                          reference.x - earlier.x, reference.y - earlier.y);
      }
    }
    multiply(p[0], p[1], a_q, b);
    multiply(m[0], m[1], a_k, b);
  }
  __half* scores = s.scores + lower_tile(row, column) * kTileElements;
  __half* below = s.feedback.below + tile_below(row, column) * kTileElements;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int at = SmallTile::at(g + 8 * upper, 8 * half + t2);
      store_word(scores + at,
                 pack_fp16(scale * p[half][2 * upper], scale * p[half][2 * upper + 1]));
      store_word(below + at, pack_fp16(m[half][2 * upper], m[half][2 * upper + 1]));
    }
  }
}

// Rows 8 .. 15 of diagonal tile `tile`, columns 0 .. 7, of P and M; zeros above. The left operand
// holds q's rows over k's, so that one product gives both.
template <int K>
__device__ __forceinline__ void multiply_half(Shared<K>& s, int tile, float scale) {
  const int g = fragment_row();
  const int t2 = fragment_column();
  const int row = kTile * tile + kHalf;
  float d[4] = {};
#pragma unroll
  for (int c = 0; c < K; c += kTile) {
    uint32_t a[4];
    uint32_t b[2];
#pragma unroll
    for (int right = 0; right < 2; ++right) {
      const int channel = c + 8 * right + t2;
      const float2 reference = load_pair(s.sum + FloatTile<K>::at(row, channel));
      const float2 sum = load_pair(s.sum + FloatTile<K>::at(row + g, channel));
      const float2 earlier = load_pair(s.sum + FloatTile<K>::at(row - kHalf + g, channel));
      a[2 * right] = scale_word(load_word(s.q + Tile<K>::at(row + g, channel)), sum.x - reference.x,
                                sum.y - reference.y);
      a[2 * right + 1] = scale_word(load_word(s.k + Tile<K>::at(row + g, channel)),
                                    sum.x - reference.x, sum.y - reference.y);
      b[right] = scale_word(load_word(s.k + Tile<K>::at(row - kHalf + g, channel)),
                            reference.x - earlier.x, reference.y - earlier.y);
    }
    mma_16x8x16_bf16(d, a, b[0], b[1]);
  }
  __half* scores = s.scores + lower_tile(tile, tile) * kTileElements;
  float* diagonal = s.feedback.diagonal + tile * FeedbackSpace::kBlock;
  store_word(scores + SmallTile::at(kHalf + g, t2), pack_fp16(scale * d[0], scale * d[1]));
  store_word(scores + SmallTile::at(g, kHalf + t2), 0);
  *reinterpret_cast<float2*>(diagonal + (kHalf + g) * FeedbackSpace::kStride + t2) =
      make_float2(d[2], d[3]);
  *reinterpret_cast<float2*>(diagonal + g * FeedbackSpace::kStride + kHalf + t2) =
      make_float2(0, 0);
}

// The 8 x 8 block on the diagonal that begins at row 8 leaf. Four lanes share a column j; the key
// of row j decays in their registers while they walk down the rows.
template <int K>
__device__ __forceinline__ void multiply_leaf(Shared<K>& s, int leaf, float scale) {
  constexpr int kGroups = K / 16;  // groups of 4 channels per lane
  const int j = lane_id() / 4;
  const int quarter = lane_id() % 4;
  const int first = kHalf * leaf;
  float key[kGroups][4];
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    load_values<Bf16, 4>(s.k + Tile<K>::at(first + j, 4 * (quarter + 4 * m)), key[m]);
  }
  const int corner = kHalf * (leaf % 2);
  __half* scores = s.scores + lower_tile(leaf / 2, leaf / 2) * kTileElements;
  float* diagonal = s.feedback.diagonal + (leaf / 2) * FeedbackSpace::kBlock;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    float p = 0;
    float m_ij = 0;
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      const int channel = 4 * (quarter + 4 * m);
      float q[4];
      float k[4];
      float decay[4];
      load_values<Bf16, 4>(s.q + Tile<K>::at(first + i, channel), q);
      load_values<Bf16, 4>(s.k + Tile<K>::at(first + i, channel), k);
      load_values<float, 4>(s.decay() + FloatTile<K>::at(first + i, channel), decay);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (i > j) key[m][e] *= decay[e];
        p += q[e] * key[m][e];
        m_ij += k[e] * key[m][e];
      }
    }
    p = sum_over_lanes<4>(p);
    m_ij = sum_over_lanes<4>(m_ij);
    if (quarter == 0) {
      scores[SmallTile::at(corner + i, corner + j)] = __float2half_rn(i >= j ? scale * p : 0.0F);
      diagonal[(corner + i) * FeedbackSpace::kStride + corner + j] = i > j ? m_ij : 0.0F;
    }
  }
}

// Grid: one block per (chunk, value head). Bytes per token and value head: q, k 4 K, g 4 K, beta 4;
// beta 4, P and F 160.
template <int K>
__global__ void __launch_bounds__(Shape<K>::kThreads, Shape<K>::kBlocksPerProcessor)
    gated_delta_rule_forward_prepare_channel_kernel(const DeltaArguments args) {
  constexpr int kThreads = Shape<K>::kThreads;
  constexpr int kWarps = Shape<K>::kWarps;
  auto& s = *dynamic_shared<Shared<K>>();
  const int chunk = static_cast<int>(blockIdx.x) / args.G;
  const int value_head = static_cast<int>(blockIdx.x) % args.G;
  const int head = value_head / (args.G / args.H);
  const ChunkPlace place = place_of_chunk(args.map, chunk);
  const int thread = static_cast<int>(threadIdx.x);

  copy_float_rows_async<K, kThreads>(s.sum, args.g + (place.first_row * args.G + value_head) * K,
                                     int64_t{args.G} * K, place.rows);
  copy_async_commit();
  const int64_t first_key = (place.first_row * args.H + head) * K;
  copy_rows_async<K, kThreads>(s.q, args.q + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<K, kThreads>(s.k, args.k + first_key, int64_t{args.H} * K, place.rows);
  copy_async_commit();
  if (thread < kChunk) {
    const float beta =
        thread < place.rows ? args.beta[(place.first_row + thread) * args.G + value_head] : 0.0F;
    s.feedback.beta[thread] = beta;
    args.gates[(int64_t{chunk} * args.G + value_head) * kChunk + thread] = beta;
  }
  copy_async_wait<1>();
  __syncthreads();
  cumulate_gates<K, kThreads>(
      s.sum, s.totals, [&](int row, int channel, float2 gate, float2 sum, float2) {
        *reinterpret_cast<float2*>(s.sum + FloatTile<K>::at(row, channel)) = sum;
        *reinterpret_cast<float2*>(s.decay() + FloatTile<K>::at(row, channel)) =
            make_float2(exp2_approximate(gate.x), exp2_approximate(gate.y));
      });
  copy_async_wait<0>();
  __syncthreads();

  constexpr int kPairs = kTileRows * (kTileRows - 1) / 2;
  for (int task = warp_id(); task < kPairs + kTileRows; task += kWarps) {
    if (task < kPairs) {
      const int row = task < 1 ? 1 : task < 3 ? 2 : 3;
      multiply_below<K>(s, row, task - tile_below(row, 0), args.scale);
    } else {
      multiply_half<K>(s, task - kPairs, args.scale);
    }
  }
  for (int leaf = warp_id(); leaf < 2 * kTileRows; leaf += kWarps)
    multiply_leaf<K>(s, leaf, args.scale);

  solve_feedback<1, kThreads>(&s.feedback, 1);
  __syncthreads();
  const int64_t at = (int64_t{chunk} * args.G + value_head) * kLowerElements;
  for (int i = thread; i < kLowerElements / 8; i += kThreads) {
    reinterpret_cast<uint4*>(args.feedback + at)[i] =
        reinterpret_cast<const uint4*>(s.feedback.feedback)[i];
    reinterpret_cast<uint4*>(args.scores + at)[i] = reinterpret_cast<const uint4*>(s.scores)[i];
  }
}

}  // namespace

int64_t prepare_channel_shared_bytes(int64_t K) {
  return with_key_width<16, 32, 64, 128>(K,
                        [](auto width) { return int64_t{sizeof(Shared<decltype(width)::value>)}; });
}

void prepare_channel(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks, int64_t K) {
  with_key_width<16, 32, 64, 128>(K, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto kernel = gated_delta_rule_forward_prepare_channel_kernel<kWidth>;
    allow_shared_bytes(kernel, sizeof(Shared<kWidth>));
    launch(device, "gated_delta_rule_forward_prepare_channel_kernel", kernel, num_chunks * args.G,
           Shape<kWidth>::kThreads, sizeof(Shared<kWidth>), args);
  });
}

}  // namespace deltatrain::backend::cuda::delta
