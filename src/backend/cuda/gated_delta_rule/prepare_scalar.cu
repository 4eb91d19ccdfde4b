// Gates and F of every chunk where a value head has one decay per token (GDN).
#include "backend/cuda/gated_delta_rule/feedback.cuh"
#include "backend/cuda/gated_delta_rule/head_sizes.cuh"
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kThreads = 4 * kWarpSize;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kHeads = 2;                                    // value heads at a time
constexpr int kSlots = (kLowerTiles + kWarps - 1) / kWarps;  // lower tiles per warp

template <int K>
struct alignas(16) Shared {
  Bf16 k[kChunk * K];
  FeedbackSpace feedback[kHeads];
  float sum[kHeads][kChunk];  // cumulative gate, base 2
};

// Grid: one block per (chunk, q/k head), which serves the value heads of that q/k head.
// Bytes per token and value head: k once per q/k head, g and beta 8; gates 16, F 80.
template <int K>
__global__ void __launch_bounds__(kThreads, K <= 64 ? 4 : 2)
    gated_delta_rule_forward_prepare_scalar_kernel(const DeltaArguments args) {
  auto& s = *dynamic_shared<Shared<K>>();
  const int chunk = static_cast<int>(blockIdx.x) / args.H;
  const int head = static_cast<int>(blockIdx.x) % args.H;
  const int group = args.G / args.H;
  const ChunkPlace place = place_of_chunk(args.map, chunk);
  const int lane = lane_id();
  const int warp = warp_id();
  const int g = fragment_row();
  const int t2 = fragment_column();

  copy_rows_async<K, kThreads>(s.k, args.k + (place.first_row * args.H + head) * K,
                               int64_t{args.H} * K, place.rows);
  copy_async_commit();

  float products[kSlots][2][4];  // k k^T, one lower tile per slot
  for (int first = 0; first < group; first += kHeads) {
    const int heads = group - first < kHeads ? group - first : kHeads;
    if (warp < heads) {
      const int value_head = head * group + first + warp;
      float gate[2];
      float beta[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 2 * lane + e;
        const int64_t at = (place.first_row + row) * args.G + value_head;
        gate[e] = row < place.rows ? args.g[at] * kLog2E : 0.0F;
        beta[e] = row < place.rows ? args.beta[at] : 0.0F;
      }
      const float own = gate[0] + gate[1];
      float sum = own;
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const float other = __shfl_up_sync(kAllLanes, sum, distance, kWarpSize);
        if (lane >= distance) sum += other;
      }
      const float last = __shfl_sync(kAllLanes, sum, kWarpSize - 1, kWarpSize);
      const float2 sums = make_float2(sum - own + gate[0], sum);
      *reinterpret_cast<float2*>(&s.sum[warp][2 * lane]) = sums;
      *reinterpret_cast<float2*>(&s.feedback[warp].beta[2 * lane]) = make_float2(beta[0], beta[1]);
      float2* gates = reinterpret_cast<float2*>(
          args.gates + (int64_t{chunk} * args.G + value_head) * kGateRows * kChunk);
      gates[kGateSum * kChunk / 2 + lane] = sums;
      gates[kGateBeta * kChunk / 2 + lane] = make_float2(beta[0], beta[1]);
      gates[kGateGrown * kChunk / 2 + lane] =
          make_float2(exp2_approximate(sums.x), exp2_approximate(sums.y));
      gates[kGateLeft * kChunk / 2 + lane] =
          make_float2(exp2_approximate(last - sums.x), exp2_approximate(last - sums.y));
    }
    if (first == 0) copy_async_wait<0>();
    __syncthreads();
    if (first == 0) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int tile = warp + slot * kWarps;
#pragma unroll
        for (int e = 0; e < 4; ++e) products[slot][0][e] = products[slot][1][e] = 0;
        if (tile >= kLowerTiles) continue;
        const int row = lower_tile_row(tile);
        const int column = tile - lower_tile(row, 0);
#pragma unroll
        for (int c = 0; c < K; c += kTile) {
          uint32_t a[4];
          uint32_t b[4];
          load_left<Tile<K>>(a, s.k, kTile * row, c);
          load_right<Tile<K>>(b, s.k, kTile * column, c);
          multiply(products[slot][0], products[slot][1], a, b);
        }
      }
    }
    for (int h = 0; h < heads; ++h) {
      FeedbackSpace& space = s.feedback[h];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int tile = warp + slot * kWarps;
        if (tile >= kLowerTiles) continue;
        const int row = lower_tile_row(tile);
        const int column = tile - lower_tile(row, 0);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 sum_column = load_pair(&s.sum[h][kTile * column + 8 * half + t2]);
#pragma unroll
          for (int upper = 0; upper < 2; ++upper) {
            const int i = g + 8 * upper;
            const int j = 8 * half + t2;
            const float sum_row = s.sum[h][kTile * row + i];
            const float low =
                products[slot][half][2 * upper] * exp2_approximate(sum_row - sum_column.x);
            const float high =
                products[slot][half][2 * upper + 1] * exp2_approximate(sum_row - sum_column.y);
            if (row == column) {
              // A select: the exponent of a masked pair is positive and may have overflowed.
              const float2 masked = make_float2(i > j ? low : 0.0F, i > j + 1 ? high : 0.0F);
              *reinterpret_cast<float2*>(space.diagonal + row * FeedbackSpace::kBlock +
                                         i * FeedbackSpace::kStride + j) = masked;
            } else {
              store_word(
                  space.below + tile_below(row, column) * kTileElements + SmallTile::at(i, j),
                  pack_fp16(low, high));
            }
          }
        }
      }
    }
    solve_feedback<kHeads, kThreads>(s.feedback, heads);
    __syncthreads();
    for (int h = 0; h < heads; ++h) {
      const auto* from = reinterpret_cast<const uint4*>(s.feedback[h].feedback);
      auto* to = reinterpret_cast<uint4*>(
          args.feedback + (int64_t{chunk} * args.G + head * group + first + h) * kLowerElements);
      for (int i = static_cast<int>(threadIdx.x); i < kLowerElements / 8; i += kThreads)
        to[i] = from[i];
    }
    if (first + kHeads < group) __syncthreads();
  }
}

}  // namespace

int64_t prepare_scalar_shared_bytes(int64_t K) {
  return with_key_width<16, 64, 128>(K,
                        [](auto width) { return int64_t{sizeof(Shared<decltype(width)::value>)}; });
}

void prepare_scalar(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks, int64_t K) {
  with_key_width<16, 64, 128>(K, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto kernel = gated_delta_rule_forward_prepare_scalar_kernel<kWidth>;
    allow_shared_bytes(kernel, sizeof(Shared<kWidth>));
    launch(device, "gated_delta_rule_forward_prepare_scalar_kernel", kernel, num_chunks * args.H,
           kThreads, sizeof(Shared<kWidth>), args);
  });
}

}  // namespace deltatrain::backend::cuda::delta
