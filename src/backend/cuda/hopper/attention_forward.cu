#include <algorithm>
#include <string_view>

#include "backend/cuda/hopper/attention_groups.cuh"
#include "backend/cuda/hopper/hopper_kernels.h"

namespace deltatrain::backend::cuda {

namespace hopper {
namespace {

using attention::HeadRows;
using attention::TileIndex;

constexpr int kGroups = 2;  // of four warps; each owns a tile of queries
constexpr int kThreads = kGroups * kWarpsPerGroup * kWarpSize;
constexpr int kRows = kGroups * kTile;
constexpr int kBuffers = 2;
constexpr float kLn2 = 0.6931471805599453F;

struct Shared {
  Bf16 q[kGroups][kTileElements];
  Bf16 k[kBuffers][kTileElements];
  Bf16 v[kBuffers][kTileElements];
};
constexpr size_t kSharedBytes = sizeof(Shared) + kTileAlignment;

struct Arguments {
  const Bf16* q;
  const Bf16* k;
  const Bf16* v;
  Bf16* o;
  float* lse;  // may be null
  int64_t v_row_stride;
  int64_t v_head_stride;
  const int32_t* offsets;
  int num_sequences;
  int R;
  int H;
  int K;
  int V;
  float scale_log2;
};

// Grid: tiles of 128 query rows x heads. As causal_attention_forward_tiles_kernel, with a group of
// four warps for each 64 rows: their running maxima, sums and outputs are in registers, keys and
// values stream past in tiles of 64.
__global__ void __launch_bounds__(kThreads, 2)
    causal_attention_forward_groups_kernel(Arguments args) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  Shared& s = aligned_shared<Shared>();
  const TileIndex index(args.H, true);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const int end_row = min(first_row + kRows, args.R);
  const Bf16* const q = args.q + index.head * args.K;
  const Bf16* const k = args.k + int64_t{index.head} * args.K;
  const Bf16* const v = args.v + index.head * args.v_head_stride;
  const int64_t row_stride = int64_t{args.H} * args.K;
  const int lane = lane_id();
  const int group = same_in_warp(warp_id() / kWarpsPerGroup);
  const int group_row = first_row + group * kTile;
  const int first_key = args.offsets[find_sequence(args.offsets, args.num_sequences, first_row)];
  const int last_begin = args.offsets[find_sequence(args.offsets, args.num_sequences, end_row - 1)];
  const int num_steps = (end_row - first_key + kTile - 1) / kTile;

  copy_rows<kRows, kThreads>(s.q[0], q, row_stride, first_row, args.R, args.K);
  copy_rows<kTile, kThreads>(s.k[0], k, row_stride, first_key, args.R, args.K);
  copy_rows<kTile, kThreads>(s.v[0], v, args.v_row_stride, first_key, args.R, args.V);
  copy_async_commit();

  // Of the lane's two rows.
  int row[2];
  int begin[2];
  float maximum[2];
  float sum[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    row[half] = group_row + warp_id() % kWarpsPerGroup * 16 + half * 8 + lane / 4;
    begin[half] = row[half] < args.R
                      ? args.offsets[find_sequence(args.offsets, args.num_sequences, row[half])]
                      : row[half];
    maximum[half] = -1.0e30F;
    sum[half] = 0;
  }
  float out[32] = {};

#pragma unroll 1
  for (int step = 0; step < num_steps; ++step) {
    const int key0 = first_key + step * kTile;
    const int buffer = step % kBuffers;
    copy_async_wait<0>();
    publish_tiles();
    __syncthreads();
    if (step + 1 < num_steps) {
      copy_rows<kTile, kThreads>(s.k[buffer ^ 1], k, row_stride, key0 + kTile, args.R, args.K);
      copy_rows<kTile, kThreads>(s.v[buffer ^ 1], v, args.v_row_stride, key0 + kTile, args.R,
                                 args.V);
    }
    copy_async_commit();
    // Rows before all of these keys have nothing to do.
    if (key0 > group_row + kTile - 1) continue;
    const uint64_t q_tile = describe_tile(s.q[group]);
    const uint64_t k_tile = describe_tile(s.k[buffer]);
    const uint64_t v_tile = describe_tile(s.v[buffer]);
    float p[32];
    begin_products();
#pragma unroll
    for (int k16 = 0; k16 < 4; ++k16)
      product_64x64x16<false, false>(p, q_tile + k16 * kNextInRow, k_tile + k16 * kNextInRow,
                                     k16 > 0);
    commit_products();
    wait_products<0>();
    settle(p);
    if (key0 + kTile - 1 > group_row || key0 < last_begin) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = key0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (key > row[i % 4 / 2] || key < begin[i % 4 / 2]) p[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = p[2 * half];
#pragma unroll
      for (int j = 0; j < 8; ++j)
        largest = fmaxf(largest, fmaxf(p[4 * j + 2 * half], p[4 * j + 2 * half + 1]));
      largest = fmaxf(maximum[half], max_over_lanes<4>(largest) * args.scale_log2);
      const float correction = exp2_approximate(maximum[half] - largest);
      maximum[half] = largest;
      float part = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          p[4 * j + e] = exp2_approximate(fmaf(p[4 * j + e], args.scale_log2, -largest));
          part += p[4 * j + e];
          out[4 * j + e] *= correction;
        }
      }
      sum[half] = sum[half] * correction + part;
    }
    uint32_t left[4][4];
    pack_result(left, p);
    begin_products();
#pragma unroll
    for (int k16 = 0; k16 < 4; ++k16)
      product_64x64x16<true>(out, left[k16], v_tile + k16 * kNextRows, true);
    commit_products();
    wait_products<0>();
    settle(out);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = sum_over_lanes<4>(sum[half]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      out[4 * j + 2 * half] /= total;
      out[4 * j + 2 * half + 1] /= total;
    }
    if (args.lse != nullptr && lane % 4 == 0 && row[half] < args.R) {
      args.lse[static_cast<int64_t>(row[half]) * args.H + index.head] =
          (maximum[half] + log2f(total)) * kLn2;
    }
  }
  store_rows(out, 1.0F, args.o + index.head * args.V, int64_t{args.H} * args.V, row[0], args.R,
             args.V);
#endif
}

}  // namespace
}  // namespace hopper

bool has_group_products(const CudaDevice& device) {
  constexpr std::string_view architectures = DELTATRAIN_CUDA_ARCHITECTURES;
  return device.compute_capability() == 90 && architectures.find("90a") != std::string_view::npos;
}

bool attention_forward_groups(CudaDevice& device, const ops::CausalAttentionForward& args) {
  using hopper::Bf16;
  if (!has_group_products(device) ||
      std::max(args.q_RHK.size(2), args.v_RHV.size(2)) > kMaxGroupWidth)
    return false;
  hopper::Arguments arguments{};
  arguments.q = pointer<const Bf16>(args.q_RHK);
  arguments.k = pointer<const Bf16>(args.k_RHK);
  arguments.v = pointer<const Bf16>(args.v_RHV);
  arguments.o = pointer<Bf16>(args.o_RHV);
  arguments.lse = pointer<float>(args.lse_RH);
  arguments.v_row_stride = args.v_RHV.stride(0);
  arguments.v_head_stride = args.v_RHV.stride(1);
  arguments.offsets = pointer<const int32_t>(args.sequences.device_offsets);
  arguments.num_sequences = narrow<int>(args.sequences.num());
  arguments.R = narrow<int>(args.q_RHK.size(0));
  arguments.H = narrow<int>(args.q_RHK.size(1));
  arguments.K = narrow<int>(args.q_RHK.size(2));
  arguments.V = narrow<int>(args.v_RHV.size(2));
  arguments.scale_log2 = static_cast<float>(args.scale) * hopper::kLog2e;
  allow_shared_bytes(hopper::causal_attention_forward_groups_kernel, hopper::kSharedBytes);
  launch(device, "causal_attention_forward_groups_kernel",
         hopper::causal_attention_forward_groups_kernel,
         attention::num_tile_blocks(divide_up(arguments.R, hopper::kRows), arguments.H),
         hopper::kThreads, hopper::kSharedBytes, arguments);
  return true;
}

}  // namespace deltatrain::backend::cuda
