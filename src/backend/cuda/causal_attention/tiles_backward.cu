#include <algorithm>

#include "backend/cuda/causal_attention/attention.h"
#include "backend/cuda/causal_attention/tiles.cuh"

namespace deltatrain::backend::cuda {

namespace attention {
namespace {

constexpr float kLog2e = 1.4426950408889634F;
constexpr int kSub = kStep / 2;  // columns of the score matrix that are in registers at a time

struct BackwardArguments {
  const Bf16* d_o;
  const Bf16* q;
  const Bf16* k;
  const Bf16* v;
  const float* lse;
  const float* delta;         // [R, H], do . o
  const int32_t* row_begins;  // [R]
  Bf16* dq;
  Bf16* dk;
  Bf16* dv;
  int64_t v_row_stride;
  int64_t v_head_stride;
  int64_t dv_row_stride;
  int64_t dv_head_stride;
  const int32_t* offsets;
  int num_sequences;
  int R;
  int H;
  int K;
  int V;
  float scale;
  float scale_log2;
};

// Grid: tiles of 64 kM keys x heads. A block owns the keys, a warp 16 kM of them with their dk and
// dv in registers; the queries that may see them stream past in tiles of 64. Scores are computed
// transposed, keys by queries, so that they are the left operand of the two products that follow
// without leaving registers. Dynamic shared: 64 kM rows of kK + kV, 128 rows of kK + kV elements,
// and 3 numbers for each of 128 queries.
template <int kK, int kV, int kM>
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_keys_kernel(BackwardArguments args) {
  constexpr int kRows = kStep * kM;
  Bf16* const s_k = dynamic_shared<Bf16>();
  Bf16* const s_v = s_k + kRows * kK;
  Bf16* const s_q = s_v + kRows * kV;                                    // two tiles
  Bf16* const s_do = s_q + 2 * kStep * kK;                               // two tiles
  float* const s_lse = reinterpret_cast<float*>(s_do + 2 * kStep * kV);  // in units of log2
  float* const s_delta = s_lse + 2 * kStep;
  int32_t* const s_begin = reinterpret_cast<int32_t*>(s_delta + 2 * kStep);

  const TileIndex index(args.H, false);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const HeadRows q{args.q + index.head * args.K, int64_t{args.H} * args.K, args.K};
  const HeadRows k{args.k + int64_t{index.head} * args.K, int64_t{args.H} * args.K, args.K};
  const HeadRows v{args.v + index.head * args.v_head_stride, args.v_row_stride, args.V};
  const HeadRows d_o{args.d_o + index.head * args.V, int64_t{args.H} * args.V, args.V};
  const int lane = lane_id();
  const int warp_row = warp_id() * (16 * kM);
  const int first_key = first_row + warp_row;  // of the warp
  const int last_key = first_key + 16 * kM - 1;
  const int last_of_block = min(first_row + kRows, args.R) - 1;
  const int query_end =
      args.offsets[find_sequence(args.offsets, args.num_sequences, last_of_block) + 1];
  const int num_steps = (query_end - first_row + kStep - 1) / kStep;

  const auto fetch_queries = [&](int query0, int buffer) {
    copy_tile<kStep, kK>(s_q + buffer * kStep * kK, q, query0, args.R);
    copy_tile<kStep, kV>(s_do + buffer * kStep * kV, d_o, query0, args.R);
    copy_async_commit();
    for (int i = static_cast<int>(threadIdx.x); i < kStep; i += kThreads) {
      const int row = query0 + i;
      const bool valid = row < args.R;
      // Rows that are not there get weights of exactly zero.
      s_lse[buffer * kStep + i] =
          valid ? args.lse[static_cast<int64_t>(row) * args.H + index.head] * kLog2e : INFINITY;
      s_delta[buffer * kStep + i] =
          valid ? args.delta[static_cast<int64_t>(row) * args.H + index.head] : 0.0F;
      s_begin[buffer * kStep + i] = valid ? args.row_begins[row] : args.R;
    }
  };

  copy_tile<kRows, kK>(s_k, k, first_row, args.R);
  copy_tile<kRows, kV>(s_v, v, first_row, args.R);
  fetch_queries(first_row, 0);

  float dk[kM][kK / 8][4] = {};
  float dv[kM][kV / 8][4] = {};

  for (int step = 0; step < num_steps; ++step) {
    const int query0 = first_row + step * kStep;
    const int buffer = step % 2;
    if (step + 1 < num_steps) {
      fetch_queries(query0 + kStep, 1 - buffer);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    Bf16* const s_q_now = s_q + buffer * kStep * kK;
    Bf16* const s_do_now = s_do + buffer * kStep * kV;
    const int32_t* const begins = s_begin + buffer * kStep;
    // Some query of the tile comes after some key of the warp, in the same sequence.
    if (query0 + kStep - 1 >= first_key && begins[0] <= last_key) {
      const bool masked = query0 < last_key || begins[kStep - 1] > first_key;
#pragma unroll 1
      for (int sub = 0; sub < kStep; sub += kSub) {
        float p[kM][kSub / 8][4] = {};
#pragma unroll
        for (int k16 = 0; k16 < kK / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) load_left<kK>(left[m], s_k, warp_row + m * 16, k16);
#pragma unroll
          for (int n16 = 0; n16 < kSub / 16; ++n16) {
            uint32_t right[4];
            load_right_from_transpose<kK>(right, s_q_now, sub + n16 * 16, k16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(p[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(p[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
        // Scores to weights.
#pragma unroll
        for (int n = 0; n < kSub / 8; ++n) {
#pragma unroll
          for (int column = 0; column < 2; ++column) {
            const int query = sub + n * 8 + lane % 4 * 2 + column;
            const float lse = s_lse[buffer * kStep + query];
            const int32_t begin = begins[query];
#pragma unroll
            for (int m = 0; m < kM; ++m) {
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                float& value = p[m][n][2 * half + column];
                value = exp2_approximate(fmaf(value, args.scale_log2, -lse));
                if (masked) {
                  const int key = first_key + m * 16 + half * 8 + lane / 4;
                  if (key > query0 + query || key < begin) value = 0;
                }
              }
            }
          }
        }
        // dv += p do
#pragma unroll
        for (int k16 = 0; k16 < kSub / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) as_left(left[m], p[m][2 * k16], p[m][2 * k16 + 1]);
#pragma unroll
          for (int n16 = 0; n16 < kV / 16; ++n16) {
            uint32_t right[4];
            load_right<kV>(right, s_do_now, sub + k16 * 16, n16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(dv[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(dv[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
        // ds = p (v do - delta), in place of p
        float dp[kM][kSub / 8][4] = {};
#pragma unroll
        for (int k16 = 0; k16 < kV / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) load_left<kV>(left[m], s_v, warp_row + m * 16, k16);
#pragma unroll
          for (int n16 = 0; n16 < kSub / 16; ++n16) {
            uint32_t right[4];
            load_right_from_transpose<kV>(right, s_do_now, sub + n16 * 16, k16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(dp[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(dp[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kSub / 8; ++n) {
#pragma unroll
          for (int column = 0; column < 2; ++column) {
            const float delta = s_delta[buffer * kStep + sub + n * 8 + lane % 4 * 2 + column];
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              p[m][n][column] *= dp[m][n][column] - delta;
              p[m][n][2 + column] *= dp[m][n][2 + column] - delta;
            }
          }
        }
        // dk += ds q
#pragma unroll
        for (int k16 = 0; k16 < kSub / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) as_left(left[m], p[m][2 * k16], p[m][2 * k16 + 1]);
#pragma unroll
          for (int n16 = 0; n16 < kK / 16; ++n16) {
            uint32_t right[4];
            load_right<kK>(right, s_q_now, sub + k16 * 16, n16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(dk[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(dk[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int row = first_key + m * 16 + lane / 4;
    store_result(dk[m], args.scale, args.scale, args.dk + index.head * args.K,
                 int64_t{args.H} * args.K, row, args.R, args.K);
    store_result(dv[m], 1.0F, 1.0F, args.dv + index.head * args.dv_head_stride, args.dv_row_stride,
                 row, args.R, args.V);
  }
}

// Grid: tiles of 64 kM query rows x heads. A block owns the rows, a warp 16 kM of them with their
// dq in registers; the keys that they see stream past in tiles of 64. Dynamic shared: 64 kM rows of
// kK + kV and 128 rows of kK + kV elements.
template <int kK, int kV, int kM>
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_queries_kernel(BackwardArguments args) {
  constexpr int kRows = kStep * kM;
  Bf16* const s_q = dynamic_shared<Bf16>();
  Bf16* const s_do = s_q + kRows * kK;
  Bf16* const s_k = s_do + kRows * kV;     // two tiles
  Bf16* const s_v = s_k + 2 * kStep * kK;  // two tiles

  const TileIndex index(args.H, true);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const int end_row = min(first_row + kRows, args.R);
  const HeadRows q{args.q + index.head * args.K, int64_t{args.H} * args.K, args.K};
  const HeadRows k{args.k + int64_t{index.head} * args.K, int64_t{args.H} * args.K, args.K};
  const HeadRows v{args.v + index.head * args.v_head_stride, args.v_row_stride, args.V};
  const HeadRows d_o{args.d_o + index.head * args.V, int64_t{args.H} * args.V, args.V};
  const int lane = lane_id();
  const int warp_row = warp_id() * (16 * kM);
  const int first_key = args.row_begins[first_row];
  const int last_begin = args.row_begins[end_row - 1];
  const int num_steps = (end_row - first_key + kStep - 1) / kStep;

  copy_tile<kRows, kK>(s_q, q, first_row, args.R);
  copy_tile<kRows, kV>(s_do, d_o, first_row, args.R);
  copy_tile<kStep, kK>(s_k, k, first_key, args.R);
  copy_tile<kStep, kV>(s_v, v, first_key, args.R);
  copy_async_commit();

  int row[kM][2];
  int begin[kM][2];
  float lse[kM][2];
  float delta[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[m][half] = first_row + warp_row + m * 16 + half * 8 + lane / 4;
      const bool valid = row[m][half] < args.R;
      begin[m][half] = valid ? args.row_begins[row[m][half]] : row[m][half];
      lse[m][half] =
          valid ? args.lse[static_cast<int64_t>(row[m][half]) * args.H + index.head] * kLog2e
                : INFINITY;
      delta[m][half] =
          valid ? args.delta[static_cast<int64_t>(row[m][half]) * args.H + index.head] : 0.0F;
    }
  }
  float dq[kM][kK / 8][4] = {};

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
    Bf16* const s_k_now = s_k + step % 2 * kStep * kK;
    Bf16* const s_v_now = s_v + step % 2 * kStep * kV;
    if (key0 <= first_row + warp_row + 16 * kM - 1) {
      const bool masked = key0 + kStep - 1 > first_row + warp_row || key0 < last_begin;
#pragma unroll 1
      for (int sub = 0; sub < kStep; sub += kSub) {
        float p[kM][kSub / 8][4] = {};
        float dp[kM][kSub / 8][4] = {};
#pragma unroll
        for (int k16 = 0; k16 < kK / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) load_left<kK>(left[m], s_q, warp_row + m * 16, k16);
#pragma unroll
          for (int n16 = 0; n16 < kSub / 16; ++n16) {
            uint32_t right[4];
            load_right_from_transpose<kK>(right, s_k_now, sub + n16 * 16, k16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(p[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(p[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
#pragma unroll
        for (int k16 = 0; k16 < kV / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) load_left<kV>(left[m], s_do, warp_row + m * 16, k16);
#pragma unroll
          for (int n16 = 0; n16 < kSub / 16; ++n16) {
            uint32_t right[4];
            load_right_from_transpose<kV>(right, s_v_now, sub + n16 * 16, k16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(dp[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(dp[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int n = 0; n < kSub / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float value = exp2_approximate(fmaf(p[m][n][e], args.scale_log2, -lse[m][e / 2]));
              if (masked) {
                const int key = key0 + sub + n * 8 + lane % 4 * 2 + e % 2;
                if (key > row[m][e / 2] || key < begin[m][e / 2]) value = 0;
              }
              p[m][n][e] = value * (dp[m][n][e] - delta[m][e / 2]);
            }
          }
        }
        // dq += ds k
#pragma unroll
        for (int k16 = 0; k16 < kSub / 16; ++k16) {
          uint32_t left[kM][4];
#pragma unroll
          for (int m = 0; m < kM; ++m) as_left(left[m], p[m][2 * k16], p[m][2 * k16 + 1]);
#pragma unroll
          for (int n16 = 0; n16 < kK / 16; ++n16) {
            uint32_t right[4];
            load_right<kK>(right, s_k_now, sub + k16 * 16, n16);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              mma_16x8x16_bf16(dq[m][2 * n16], left[m], right[0], right[1]);
              mma_16x8x16_bf16(dq[m][2 * n16 + 1], left[m], right[2], right[3]);
            }
          }
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    store_result(dq[m], args.scale, args.scale, args.dq + index.head * args.K,
                 int64_t{args.H} * args.K, row[m][0], args.R, args.K);
  }
}

template <int kK, int kV, int kM>
void launch_backward(CudaDevice& device, const BackwardArguments& arguments) {
  constexpr int kRows = kStep * kM;
  constexpr size_t kTiles = sizeof(Bf16) * (kRows + 2 * kStep) * (kK + kV);
  constexpr size_t kKeysShared = kTiles + 2 * kStep * (2 * sizeof(float) + sizeof(int32_t));
  const int64_t blocks = num_tile_blocks(divide_up(arguments.R, kRows), arguments.H);
  allow_shared_bytes(causal_attention_backward_keys_kernel<kK, kV, kM>, kKeysShared);
  launch(device, "causal_attention_backward_keys_kernel",
         causal_attention_backward_keys_kernel<kK, kV, kM>, blocks, kThreads, kKeysShared,
         arguments);
  allow_shared_bytes(causal_attention_backward_queries_kernel<kK, kV, kM>, kTiles);
  launch(device, "causal_attention_backward_queries_kernel",
         causal_attention_backward_queries_kernel<kK, kV, kM>, blocks, kThreads, kTiles, arguments);
}

}  // namespace
}  // namespace attention

void attention_tiles_backward(CudaDevice& device, const ops::CausalAttentionBackward& args,
                              const Tensor& delta_RH, const Tensor& row_begins_R) {
  using attention::Bf16;
  attention::BackwardArguments arguments{};
  arguments.d_o = pointer<const Bf16>(args.do_RHV);
  arguments.q = pointer<const Bf16>(args.q_RHK);
  arguments.k = pointer<const Bf16>(args.k_RHK);
  arguments.v = pointer<const Bf16>(args.v_RHV);
  arguments.lse = pointer<const float>(args.lse_RH);
  arguments.delta = pointer<const float>(delta_RH);
  arguments.row_begins = pointer<const int32_t>(row_begins_R);
  arguments.dq = pointer<Bf16>(args.dq_RHK);
  arguments.dk = pointer<Bf16>(args.dk_RHK);
  arguments.dv = pointer<Bf16>(args.dv_RHV);
  arguments.v_row_stride = args.v_RHV.stride(0);
  arguments.v_head_stride = args.v_RHV.stride(1);
  arguments.dv_row_stride = args.dv_RHV.stride(0);
  arguments.dv_head_stride = args.dv_RHV.stride(1);
  arguments.offsets = pointer<const int32_t>(args.sequences.device_offsets);
  arguments.num_sequences = narrow<int>(args.sequences.num());
  arguments.R = narrow<int>(args.q_RHK.size(0));
  arguments.H = narrow<int>(args.q_RHK.size(1));
  arguments.K = narrow<int>(args.q_RHK.size(2));
  arguments.V = narrow<int>(args.v_RHV.size(2));
  arguments.scale = static_cast<float>(args.scale);
  arguments.scale_log2 = static_cast<float>(args.scale) * attention::kLog2e;
  if (std::max(arguments.K, arguments.V) <= 64) {
    attention::launch_backward<64, 64, 2>(device, arguments);
  } else {
    attention::launch_backward<128, 128, 1>(device, arguments);
  }
}

}  // namespace deltatrain::backend::cuda
