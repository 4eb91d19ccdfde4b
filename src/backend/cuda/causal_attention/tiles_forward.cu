#include <algorithm>

#include "backend/cuda/causal_attention/attention.h"
#include "backend/cuda/causal_attention/tiles.cuh"

namespace deltatrain::backend::cuda {

namespace attention {
namespace {

constexpr float kLog2e = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

struct ForwardArguments {
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
  float scale_log2;  // scale log2(e)
};

// Grid: tiles of 64 kM query rows x heads. A block owns a tile, a warp 16 kM of its rows with their
// running maxima, sums and outputs in registers; keys and values stream past in tiles of 64, the
// next one under way while one is used. Tiles are cut without regard to sequences: a row sees the
// keys from its sequence's begin to itself. Dynamic shared: (64 kM + 128) rows of kK and 128 of kV
// elements.
template <int kK, int kV, int kM>
__global__ void __launch_bounds__(kThreads)
    causal_attention_forward_tiles_kernel(ForwardArguments args) {
  constexpr int kRows = kStep * kM;
  Bf16* const s_q = dynamic_shared<Bf16>();
  Bf16* const s_k = s_q + kRows * kK;      // two tiles
  Bf16* const s_v = s_k + 2 * kStep * kK;  // two tiles
  const TileIndex index(args.H, true);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const int end_row = min(first_row + kRows, args.R);
  const HeadRows q{args.q + index.head * args.K, int64_t{args.H} * args.K, args.K};
  const HeadRows k{args.k + int64_t{index.head} * args.K, int64_t{args.H} * args.K, args.K};
  const HeadRows v{args.v + index.head * args.v_head_stride, args.v_row_stride, args.V};

  const int lane = lane_id();
  const int warp_row = warp_id() * (16 * kM);  // within the tile
  const int first_key = args.offsets[find_sequence(args.offsets, args.num_sequences, first_row)];
  const int last_begin = args.offsets[find_sequence(args.offsets, args.num_sequences, end_row - 1)];
  const int num_steps = (end_row - first_key + kStep - 1) / kStep;

  copy_tile<kRows, kK>(s_q, q, first_row, args.R);
  copy_tile<kStep, kK>(s_k, k, first_key, args.R);
  copy_tile<kStep, kV>(s_v, v, first_key, args.R);
  copy_async_commit();

  // Of the lane's rows, [m][low or high 8].
  int row[kM][2];
  int begin[kM][2];
  float maximum[kM][2];
  float sum[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[m][half] = first_row + warp_row + m * 16 + half * 8 + lane / 4;
      begin[m][half] =
          row[m][half] < args.R
              ? args.offsets[find_sequence(args.offsets, args.num_sequences, row[m][half])]
              : row[m][half];
      maximum[m][half] = -1.0e30F;
      sum[m][half] = 0;
    }
  }
  float out[kM][kV / 8][4] = {};

  for (int step = 0; step < num_steps; ++step) {
    const int key0 = first_key + step * kStep;
    if (step + 1 < num_steps) {
      const int next = (step + 1) % 2;
      copy_tile<kStep, kK>(s_k + next * kStep * kK, k, key0 + kStep, args.R);
      copy_tile<kStep, kV>(s_v + next * kStep * kV, v, key0 + kStep, args.R);
      copy_async_commit();
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    // Rows before all of these keys have nothing to do.
    if (key0 <= first_row + warp_row + 16 * kM - 1) {
      Bf16* const s_k_now = s_k + step % 2 * kStep * kK;
      Bf16* const s_v_now = s_v + step % 2 * kStep * kV;
      float s[kM][kStep / 8][4] = {};
#pragma unroll
      for (int k16 = 0; k16 < kK / 16; ++k16) {
        uint32_t left[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) load_left<kK>(left[m], s_q, warp_row + m * 16, k16);
#pragma unroll
        for (int n16 = 0; n16 < kStep / 16; ++n16) {
          uint32_t right[4];
          load_right_from_transpose<kK>(right, s_k_now, n16 * 16, k16);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            mma_16x8x16_bf16(s[m][2 * n16], left[m], right[0], right[1]);
            mma_16x8x16_bf16(s[m][2 * n16 + 1], left[m], right[2], right[3]);
          }
        }
      }
      const bool masked = key0 + kStep - 1 > first_row + warp_row || key0 < last_begin;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if (masked) {
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int key = key0 + n * 8 + lane % 4 * 2 + e % 2;
              if (key > row[m][e / 2] || key < begin[m][e / 2]) s[m][n][e] = -INFINITY;
            }
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float largest = s[m][0][2 * half];
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
            largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
          }
          largest = fmaxf(maximum[m][half], max_over_lanes<4>(largest) * args.scale_log2);
          const float correction = exp2_approximate(maximum[m][half] - largest);
          maximum[m][half] = largest;
          float part = 0;
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              s[m][n][e] = exp2_approximate(fmaf(s[m][n][e], args.scale_log2, -largest));
              part += s[m][n][e];
            }
          }
          sum[m][half] = sum[m][half] * correction + part;
#pragma unroll
          for (int n = 0; n < kV / 8; ++n) {
            out[m][n][2 * half] *= correction;
            out[m][n][2 * half + 1] *= correction;
          }
        }
      }
#pragma unroll
      for (int k16 = 0; k16 < kStep / 16; ++k16) {
        uint32_t left[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) as_left(left[m], s[m][2 * k16], s[m][2 * k16 + 1]);
#pragma unroll
        for (int n16 = 0; n16 < kV / 16; ++n16) {
          uint32_t right[4];
          load_right<kV>(right, s_v_now, k16 * 16, n16);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            mma_16x8x16_bf16(out[m][2 * n16], left[m], right[0], right[1]);
            mma_16x8x16_bf16(out[m][2 * n16 + 1], left[m], right[2], right[3]);
          }
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = sum_over_lanes<4>(sum[m][half]);
      inverse[half] = 1.0F / total;
      if (args.lse != nullptr && lane % 4 == 0 && row[m][half] < args.R) {
        args.lse[static_cast<int64_t>(row[m][half]) * args.H + index.head] =
            (maximum[m][half] + log2f(total)) * kLn2;
      }
    }
    store_result(out[m], inverse[0], inverse[1], args.o + index.head * args.V,
                 int64_t{args.H} * args.V, row[m][0], args.R, args.V);
  }
}

template <int kK, int kV, int kM>
void launch_forward(CudaDevice& device, const ForwardArguments& arguments) {
  constexpr int kRows = kStep * kM;
  constexpr size_t kShared = sizeof(Bf16) * (kRows * kK + 2 * kStep * kK + 2 * kStep * kV);
  allow_shared_bytes(causal_attention_forward_tiles_kernel<kK, kV, kM>, kShared);
  launch(device, "causal_attention_forward_tiles_kernel",
         causal_attention_forward_tiles_kernel<kK, kV, kM>,
         num_tile_blocks(divide_up(arguments.R, kRows), arguments.H), kThreads, kShared, arguments);
}

}  // namespace
}  // namespace attention

void attention_tiles_forward(CudaDevice& device, const ops::CausalAttentionForward& args) {
  using attention::Bf16;
  attention::ForwardArguments arguments{};
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
  arguments.scale_log2 = static_cast<float>(args.scale) * attention::kLog2e;
  if (std::max(arguments.K, arguments.V) <= 64) {
    attention::launch_forward<64, 64, 2>(device, arguments);
  } else {
    attention::launch_forward<128, 128, 1>(device, arguments);
  }
}

}  // namespace deltatrain::backend::cuda
