#include "backend/cuda/causal_attention/attention.h"
#include "backend/cuda/causal_attention/f32_tiles.cuh"

namespace deltatrain::backend::cuda {

namespace attention_f32 {
namespace {

struct BackwardArguments : Inputs {
  const float* d_o;
  const float* lse;
  const float* delta;         // [R, H], do . o
  const int32_t* row_begins;  // [R]
  float* dq;
  float* dk;
  float* dv;
  int64_t dv_row_stride;
  int64_t dv_head_stride;

  __device__ __forceinline__ HeadRows do_rows(int head) const {
    return {d_o + head * V, int64_t{H} * V, V};
  }
};

// Grid: one thread per row and head. Adds in add_scores' order: where one key has all the weight, o
// is its value and do . o - do . v exactly zero. Bytes: do and o, once.
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_f32_delta_kernel(const float* d_o, const float* o, float* delta,
                                               int64_t units, int V) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (unit >= units) return;
  float sum = 0;
  for (int part = 0; part < V; part += kPart) {
    float part_sum = 0;
    for (int v = part; v < min(part + kPart, V); v += kChunk) {
      float left[kChunk];
      float right[kChunk];
      load_values(d_o + unit * V + v, left);
      load_values(o + unit * V + v, right);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) part_sum = fmaf(left[e], right[e], part_sum);
    }
    sum += part_sum;
  }
  delta[unit] = sum;
}

constexpr size_t kQueriesShared =
    sizeof(float) * ((2 * kRows + 2 * kStep) * kStride + kRows * kWeightStride);
constexpr size_t kKeysShared = kQueriesShared + kStep * (2 * sizeof(float) + sizeof(int32_t));

// Grid: tiles of kRows keys x heads. A block owns the keys, a lane kM of them with its part of
// their dk and dv in registers; the queries that may see them stream past in tiles of kStep. Scores
// are computed transposed, keys by queries. Operations: 4 (K + V) per query and key. Bytes: k, v,
// dk and dv once, q, do, lse and delta once per tile that they see. Dynamic shared: kKeysShared.
__global__ void __launch_bounds__(kThreads, 2)
    causal_attention_backward_f32_keys_kernel(BackwardArguments args) {
  float* const s_k = dynamic_shared<float>();
  float* const s_v = s_k + kRows * kStride;
  float* const s_q = s_v + kRows * kStride;
  float* const s_do = s_q + kStep * kStride;
  float* const s_p = s_do + kStep * kStride;  // first p, then ds
  float* const s_lse = s_p + kRows * kWeightStride;
  float* const s_delta = s_lse + kStep;
  int32_t* const s_begin = reinterpret_cast<int32_t*>(s_delta + kStep);
  const attention::TileIndex index(args.H, false);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const HeadRows q = args.q_rows(index.head);
  const HeadRows k = args.k_rows(index.head);
  const HeadRows v = args.v_rows(index.head);
  const HeadRows d_o = args.do_rows(index.head);
  const LanePlace place;
  const int first_key = first_row + warp_id() * kWarpRows;  // of the warp
  const int last_key = first_key + kWarpRows - 1;
  const int last_of_block = min(first_row + kRows, args.R) - 1;
  const int query_end = args.offsets[args.sequence(last_of_block) + 1];
  const int num_steps = (query_end - first_row + kStep - 1) / kStep;

  // Rows of q and do past the last are zeros, and so is what they add.
  const auto fetch_gradients = [&](int query0) {
    copy_tile<kStep>(s_do, d_o, query0, args.R);
    static_assert(kStep <= kThreads);
    const int i = static_cast<int>(threadIdx.x);
    if (i < kStep) {
      const int row = query0 + i;
      const int valid_row = min(row, args.R - 1);
      const int64_t unit = static_cast<int64_t>(valid_row) * args.H + index.head;
      copy_async_4(s_lse + i, args.lse + unit, row < args.R);
      copy_async_4(s_delta + i, args.delta + unit, row < args.R);
      copy_async_4(s_begin + i, args.row_begins + valid_row, true);
    }
  };

  copy_tile<kRows>(s_k, k, first_row, args.R);
  copy_tile<kRows>(s_v, v, first_row, args.R);
  fetch_gradients(first_row);
  copy_async_commit();
  copy_tile<kStep>(s_q, q, first_row, args.R);
  copy_async_commit();

  float dk[kM][kN] = {};
  float dv[kM][kN] = {};
  copy_async_wait<1>();
  __syncthreads();

  for (int step = 0; step < num_steps; ++step) {
    const int query0 = first_row + step * kStep;
    const bool last = step + 1 == num_steps;
    // Some query of the tile comes after some key of the warp, in the same sequence.
    const bool seen = query0 + kStep - 1 >= first_key && s_begin[0] <= last_key;
    float ds[kM][kN] = {};
    if (seen) add_scores(ds, s_v, s_do, place, args.V);
    copy_async_wait<0>();
    __syncthreads();  // the queries are there
    if (seen) {
      float p[kM][kN] = {};
      add_scores(p, s_k, s_q, place, args.K);
      const bool masked = query0 < last_key || s_begin[kStep - 1] > first_key;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int column = place.column + j * kColumnLanes;
        const float lse = s_lse[column];
        const float delta = s_delta[column];
        const int begin = s_begin[column];
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          const int key = first_row + place.row + i * kRowLanes;
          p[i][j] = expf(fmaf(p[i][j], args.scale, -lse));
          if (masked && (key > query0 + column || key < begin)) p[i][j] = 0;
          ds[i][j] = p[i][j] * (ds[i][j] - delta);
        }
      }
      share_weights(s_p, p, place);
      add_weighted_rows(dv, s_p, s_do, place);
    }
    __syncthreads();  // the gradients have been used
    if (!last) fetch_gradients(query0 + kStep);
    copy_async_commit();
    if (seen) {
      share_weights(s_p, ds, place);
      add_weighted_rows(dk, s_p, s_q, place);
    }
    copy_async_wait<0>();
    __syncthreads();  // the next gradients are there, and the queries have been used
    if (!last) copy_tile<kStep>(s_q, q, query0 + kStep, args.R);
    copy_async_commit();
  }

  store_sums(dk, args.scale, args.dk + index.head * args.K, int64_t{args.H} * args.K, first_row,
             args.R, args.K, place);
  store_sums(dv, 1.0F, args.dv + index.head * args.dv_head_stride, args.dv_row_stride, first_row,
             args.R, args.V, place);
}

// Grid: tiles of kRows query rows x heads. A block owns the rows, a lane kM of them with its part
// of their dq in registers; the keys that they see stream past in tiles of kStep. Operations:
// 4 K + 2 V per query and key. Bytes: q, do, dq, lse and delta once, k and v once per tile that
// sees them. Dynamic shared: kQueriesShared.
__global__ void __launch_bounds__(kThreads, 2)
    causal_attention_backward_f32_queries_kernel(BackwardArguments args) {
  float* const s_q = dynamic_shared<float>();
  float* const s_do = s_q + kRows * kStride;
  float* const s_k = s_do + kRows * kStride;
  float* const s_v = s_k + kStep * kStride;
  float* const s_ds = s_v + kStep * kStride;
  const attention::TileIndex index(args.H, true);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const int end_row = min(first_row + kRows, args.R);
  const HeadRows q = args.q_rows(index.head);
  const HeadRows k = args.k_rows(index.head);
  const HeadRows v = args.v_rows(index.head);
  const HeadRows d_o = args.do_rows(index.head);
  const LanePlace place;
  const int warp_row = first_row + warp_id() * kWarpRows;
  const int first_key = args.row_begins[first_row];
  const int last_begin = args.row_begins[end_row - 1];
  const int num_steps = (end_row - first_key + kStep - 1) / kStep;

  copy_tile<kRows>(s_q, q, first_row, args.R);
  copy_tile<kRows>(s_do, d_o, first_row, args.R);
  copy_tile<kStep>(s_v, v, first_key, args.R);
  copy_async_commit();
  copy_tile<kStep>(s_k, k, first_key, args.R);
  copy_async_commit();

  int begin[kM];
  float lse[kM];
  float delta[kM];
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int row = first_row + place.row + i * kRowLanes;
    const bool valid = row < args.R;
    const int64_t unit = static_cast<int64_t>(row) * args.H + index.head;
    begin[i] = valid ? args.row_begins[row] : row;
    lse[i] = valid ? args.lse[unit] : 0.0F;
    delta[i] = valid ? args.delta[unit] : 0.0F;
  }
  float dq[kM][kN] = {};
  copy_async_wait<1>();
  __syncthreads();

  for (int step = 0; step < num_steps; ++step) {
    const int key0 = first_key + step * kStep;
    const bool last = step + 1 == num_steps;
    const bool seen = key0 <= warp_row + kWarpRows - 1;  // by some row of the warp
    float ds[kM][kN] = {};
    if (seen) add_scores(ds, s_do, s_v, place, args.V);
    copy_async_wait<0>();
    __syncthreads();  // the keys are there, and the values have been used
    if (!last) copy_tile<kStep>(s_v, v, key0 + kStep, args.R);
    copy_async_commit();
    if (seen) {
      float p[kM][kN] = {};
      add_scores(p, s_q, s_k, place, args.K);
      const bool masked = key0 + kStep - 1 > warp_row || key0 < last_begin;
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        const int row = first_row + place.row + i * kRowLanes;
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          const int key = key0 + place.column + j * kColumnLanes;
          float weight = expf(fmaf(p[i][j], args.scale, -lse[i]));
          if (masked && (key > row || key < begin[i])) weight = 0;
          ds[i][j] = weight * (ds[i][j] - delta[i]);
        }
      }
      share_weights(s_ds, ds, place);
      add_weighted_rows(dq, s_ds, s_k, place);
    }
    copy_async_wait<0>();
    __syncthreads();  // the next values are there, and the keys have been used
    if (!last) copy_tile<kStep>(s_k, k, key0 + kStep, args.R);
    copy_async_commit();
  }

  store_sums(dq, args.scale, args.dq + index.head * args.K, int64_t{args.H} * args.K, first_row,
             args.R, args.K, place);
}

}  // namespace
}  // namespace attention_f32

void attention_f32_tiles_backward(CudaDevice& device, const ops::CausalAttentionBackward& args,
                                  const Tensor& delta_RH, const Tensor& row_begins_R) {
  using namespace attention_f32;
  const BackwardArguments arguments{inputs(args),
                                    pointer<const float>(args.do_RHV),
                                    pointer<const float>(args.lse_RH),
                                    pointer<const float>(delta_RH),
                                    pointer<const int32_t>(row_begins_R),
                                    pointer<float>(args.dq_RHK),
                                    pointer<float>(args.dk_RHK),
                                    pointer<float>(args.dv_RHV),
                                    args.dv_RHV.stride(0),
                                    args.dv_RHV.stride(1)};
  const int64_t units = int64_t{arguments.R} * arguments.H;
  launch(device, "causal_attention_backward_f32_delta_kernel",
         causal_attention_backward_f32_delta_kernel, divide_up(units, kThreads), kThreads, 0,
         arguments.d_o, pointer<const float>(args.o_RHV), pointer<float>(delta_RH), units,
         arguments.V);
  const int64_t blocks = attention::num_tile_blocks(divide_up(arguments.R, kRows), arguments.H);
  allow_shared_bytes(causal_attention_backward_f32_keys_kernel, kKeysShared);
  launch(device, "causal_attention_backward_f32_keys_kernel",
         causal_attention_backward_f32_keys_kernel, blocks, kThreads, kKeysShared, arguments);
  allow_shared_bytes(causal_attention_backward_f32_queries_kernel, kQueriesShared);
  launch(device, "causal_attention_backward_f32_queries_kernel",
         causal_attention_backward_f32_queries_kernel, blocks, kThreads, kQueriesShared, arguments);
}

}  // namespace deltatrain::backend::cuda
