// Attention row by row: any type and width up to 256, sums in f32. The path of unusual heads and of
// decoding with a cache.
#include "backend/cuda/causal_attention/attention.h"
#include "backend/cuda/head_rows.cuh"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/sequences.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kPerLane = static_cast<int>(kMaxAttentionWidth) / kWarpSize;
constexpr int kAtOnce = 4;  // keys (or queries) of a warp under way at the same time

// Elements lane, lane + kWarpSize, ... of a vector; zeros past its width.
template <class T>
__device__ __forceinline__ void load_vector(const T* from, int width, float (&values)[kPerLane]) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int at = lane_id() + i * kWarpSize;
    values[i] = at < width ? to_float(from[at]) : 0.0F;
  }
}

template <class T>
__device__ __forceinline__ float dot(const float (&a)[kPerLane], const T* b, int width) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int at = lane_id() + i * kWarpSize;
    if (at < width) sum += a[i] * to_float(b[at]);
  }
  return sum;
}

template <class T>
__device__ __forceinline__ void add_scaled(float (&sum)[kPerLane], float factor, const T* from,
                                           int width) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int at = lane_id() + i * kWarpSize;
    if (at < width) sum[i] += factor * to_float(from[at]);
  }
}

// Adds the warps' vectors in order, times `factor`, and writes the sum.
template <class T>
__device__ __forceinline__ void write_sum_over_warps(const float (&mine)[kPerLane],
                                                     float (&s_parts)[kWarps][kMaxAttentionWidth],
                                                     float factor, T* to, int width) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) s_parts[warp_id()][lane_id() + i * kWarpSize] = mine[i];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < width; at += kThreads) {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += s_parts[warp][at];
    to[at] = from_float<T>(sum * factor);
  }
  __syncthreads();
}

template <class T>
struct RowArguments {
  const T* q;
  const T* k;  // with a cache: the cache, and so v
  const T* v;
  int64_t k_row_stride;
  int64_t v_row_stride;
  int64_t v_head_stride;
  const int32_t* offsets;
  int num_sequences;
  const int32_t* cache_lengths;  // null without a cache
  int64_t cache_rows;
  int64_t R;
  int64_t H;
  int K;
  int V;
  float scale;
};

// Grid: one block per row and head. The warps share out the keys and keep a running maximum, sum
// and output each.
template <class T>
__global__ void __launch_bounds__(kThreads)
    causal_attention_forward_rows_kernel(RowArguments<T> args, T* o, float* lse) {
  __shared__ float s_parts[kWarps][kMaxAttentionWidth];
  __shared__ float s_maximum[kWarps];
  __shared__ float s_sum[kWarps];
  const int64_t row = blockIdx.x / args.H;
  const int64_t head = blockIdx.x - row * args.H;
  const int s = find_sequence(args.offsets, args.num_sequences, row);
  const int64_t begin = args.offsets[s];
  int64_t base = begin;
  int64_t count = row - begin + 1;
  if (args.cache_lengths != nullptr) {
    base = s * args.cache_rows;
    count += args.cache_lengths[s];
  }
  const T* const k = args.k + base * args.k_row_stride + head * args.K;
  const T* const v = args.v + base * args.v_row_stride + head * args.v_head_stride;

  float q[kPerLane];
  load_vector(args.q + (row * args.H + head) * args.K, args.K, q);
  float out[kPerLane] = {};
  float maximum = -1.0e30F;
  float sum = 0;
  for (int64_t first = warp_id(); first < count; first += kWarps * kAtOnce) {
    float score[kAtOnce];
    float largest = maximum;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t key = first + j * kWarps;
      score[j] = key < count ? dot(q, k + key * args.k_row_stride, args.K) : 0.0F;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      score[j] = sum_over_lanes<kWarpSize>(score[j]) * args.scale;
      if (first + j * kWarps >= count) score[j] = -INFINITY;
      largest = fmaxf(largest, score[j]);
    }
    const float correction = expf(maximum - largest);
    maximum = largest;
    sum *= correction;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) out[i] *= correction;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t key = first + j * kWarps;
      if (key >= count) continue;
      const float p = expf(score[j] - maximum);
      sum += p;
      add_scaled(out, p, v + key * args.v_row_stride, args.V);
    }
  }
  if (lane_id() == 0) {
    s_maximum[warp_id()] = maximum;
    s_sum[warp_id()] = sum;
  }
  __syncthreads();
  float total_maximum = s_maximum[0];
  for (int warp = 1; warp < kWarps; ++warp) total_maximum = fmaxf(total_maximum, s_maximum[warp]);
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    total += s_sum[warp] * expf(s_maximum[warp] - total_maximum);
  const float correction = expf(maximum - total_maximum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) out[i] *= correction;
  write_sum_over_warps(out, s_parts, 1.0F / total, o + (row * args.H + head) * args.V, args.V);
  if (lse != nullptr && threadIdx.x == 0) lse[row * args.H + head] = total_maximum + logf(total);
}

// Grid: one block per new row and head. Copies its key and value behind those the cache holds.
template <class T>
__global__ void __launch_bounds__(kThreads)
    causal_attention_forward_cache_kernel(const T* k, const T* v, int64_t v_row_stride,
                                          int64_t v_head_stride, T* k_cache, T* v_cache,
                                          const int32_t* offsets, int num_sequences,
                                          const int32_t* cache_lengths, int64_t cache_rows,
                                          int64_t H, int K, int V) {
  const int64_t row = blockIdx.x / H;
  const int64_t head = blockIdx.x - row * H;
  const int s = find_sequence(offsets, num_sequences, row);
  const int64_t at = (s * cache_rows + cache_lengths[s] + (row - offsets[s])) * H + head;
  for (int i = static_cast<int>(threadIdx.x); i < K; i += kThreads)
    k_cache[at * K + i] = k[(row * H + head) * K + i];
  for (int i = static_cast<int>(threadIdx.x); i < V; i += kThreads) {
    v_cache[at * V + i] = v[row * v_row_stride + head * v_head_stride + i];
  }
}

// Grid: one warp per row and head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_delta_kernel(const T* d_o, const T* o, float* delta, int64_t units,
                                           int V) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (unit >= units) return;
  float values[kPerLane];
  load_vector(d_o + unit * V, V, values);
  const float sum = sum_over_lanes<kWarpSize>(dot(values, o + unit * V, V));
  if (lane_id() == 0) delta[unit] = sum;
}

// Grid: one tile of lanes per row and head. Bytes: do and o, once.
template <int kLanes>
__global__ void __launch_bounds__(kHeadBlock)
    causal_attention_backward_delta_heads_kernel(const __nv_bfloat16* d_o, const __nv_bfloat16* o,
                                                 float* delta, int64_t units) {
  const HeadTile<kLanes> at;
  const int64_t unit =
      static_cast<int64_t>(blockIdx.x) * HeadTile<kLanes>::kTilesPerBlock + at.tile;
  const int64_t from = (unit < units ? unit : 0) * (kLanes * kHeadVector) + at.column;
  float left[kHeadVector];
  float right[kHeadVector];
  load_values<__nv_bfloat16, kHeadVector, Reuse::kStreaming>(o + from, left);
  load_values(d_o + from, right);
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kHeadVector; ++e) sum += left[e] * right[e];
  sum = sum_over_lanes<kLanes>(sum);
  if (at.column == 0 && unit < units) delta[unit] = sum;
}

// Grid: one thread per row.
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_begins_kernel(const int32_t* offsets, int num_sequences,
                                            int32_t* row_begins, int64_t R) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < R) row_begins[row] = offsets[find_sequence(offsets, num_sequences, row)];
}

// Grid: one block per row and head. dq of the row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_query_rows_kernel(RowArguments<T> args, const T* d_o,
                                                const float* lse, const float* delta, T* dq) {
  __shared__ float s_parts[kWarps][kMaxAttentionWidth];
  const int64_t row = blockIdx.x / args.H;
  const int64_t head = blockIdx.x - row * args.H;
  const int64_t unit = row * args.H + head;
  const int64_t begin = args.offsets[find_sequence(args.offsets, args.num_sequences, row)];
  float q[kPerLane];
  float g[kPerLane];
  load_vector(args.q + unit * args.K, args.K, q);
  load_vector(d_o + unit * args.V, args.V, g);
  const float row_lse = lse[unit];
  const float row_delta = delta[unit];
  float sum[kPerLane] = {};
  for (int64_t first = begin + warp_id(); first <= row; first += kWarps * kAtOnce) {
    float score[kAtOnce];
    float dp[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t key = first + j * kWarps;
      score[j] = 0;
      dp[j] = 0;
      if (key > row) continue;
      score[j] = dot(q, args.k + key * args.k_row_stride + head * args.K, args.K);
      dp[j] = dot(g, args.v + key * args.v_row_stride + head * args.v_head_stride, args.V);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t key = first + j * kWarps;
      score[j] = sum_over_lanes<kWarpSize>(score[j]);
      dp[j] = sum_over_lanes<kWarpSize>(dp[j]);
      if (key > row) continue;
      const float ds = expf(score[j] * args.scale - row_lse) * (dp[j] - row_delta);
      add_scaled(sum, ds, args.k + key * args.k_row_stride + head * args.K, args.K);
    }
  }
  write_sum_over_warps(sum, s_parts, args.scale, dq + unit * args.K, args.K);
}

// Grid: one block per row and head. dk and dv of the row, from the queries at and after it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    causal_attention_backward_key_rows_kernel(RowArguments<T> args, const T* d_o, const float* lse,
                                              const float* delta, T* dk, T* dv,
                                              int64_t dv_row_stride, int64_t dv_head_stride) {
  __shared__ float s_parts[kWarps][kMaxAttentionWidth];
  const int64_t row = blockIdx.x / args.H;
  const int64_t head = blockIdx.x - row * args.H;
  const int64_t end = args.offsets[find_sequence(args.offsets, args.num_sequences, row) + 1];
  float k[kPerLane];
  float v[kPerLane];
  load_vector(args.k + row * args.k_row_stride + head * args.K, args.K, k);
  load_vector(args.v + row * args.v_row_stride + head * args.v_head_stride, args.V, v);
  float sum_k[kPerLane] = {};
  float sum_v[kPerLane] = {};
  for (int64_t first = row + warp_id(); first < end; first += kWarps * kAtOnce) {
    float score[kAtOnce];
    float dp[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t query = first + j * kWarps;
      score[j] = 0;
      dp[j] = 0;
      if (query >= end) continue;
      score[j] = dot(k, args.q + (query * args.H + head) * args.K, args.K);
      dp[j] = dot(v, d_o + (query * args.H + head) * args.V, args.V);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t query = first + j * kWarps;
      score[j] = sum_over_lanes<kWarpSize>(score[j]);
      dp[j] = sum_over_lanes<kWarpSize>(dp[j]);
      if (query >= end) continue;
      const int64_t unit = query * args.H + head;
      const float p = expf(score[j] * args.scale - lse[unit]);
      add_scaled(sum_v, p, d_o + unit * args.V, args.V);
      add_scaled(sum_k, p * (dp[j] - delta[unit]), args.q + unit * args.K, args.K);
    }
  }
  write_sum_over_warps(sum_k, s_parts, args.scale, dk + (row * args.H + head) * args.K, args.K);
  write_sum_over_warps(sum_v, s_parts, 1.0F, dv + row * dv_row_stride + head * dv_head_stride,
                       args.V);
}

template <class T, class Args>
RowArguments<T> row_arguments(const Args& args) {
  RowArguments<T> arguments{};
  arguments.q = pointer<const T>(args.q_RHK);
  arguments.k = pointer<const T>(args.k_RHK);
  arguments.v = pointer<const T>(args.v_RHV);
  arguments.R = args.q_RHK.size(0);
  arguments.H = args.q_RHK.size(1);
  arguments.K = narrow<int>(args.q_RHK.size(2));
  arguments.V = narrow<int>(args.v_RHV.size(2));
  arguments.k_row_stride = arguments.H * arguments.K;
  arguments.v_row_stride = args.v_RHV.stride(0);
  arguments.v_head_stride = args.v_RHV.stride(1);
  arguments.offsets = pointer<const int32_t>(args.sequences.device_offsets);
  arguments.num_sequences = narrow<int>(args.sequences.num());
  arguments.scale = static_cast<float>(args.scale);
  return arguments;
}

}  // namespace

void attention_rows_forward(CudaDevice& device, const ops::CausalAttentionForward& args) {
  with_activation_type("causal_attention_forward", args.q_RHK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    RowArguments<T> arguments = row_arguments<T>(args);
    const int64_t blocks = arguments.R * arguments.H;
    if (args.k_cache_SXHK.defined()) {
      arguments.cache_rows = args.k_cache_SXHK.size(1);
      arguments.cache_lengths = pointer<const int32_t>(args.cache_lengths_S);
      launch(device, "causal_attention_forward_cache_kernel",
             causal_attention_forward_cache_kernel<T>, blocks, kThreads, 0, arguments.k,
             arguments.v, arguments.v_row_stride, arguments.v_head_stride,
             pointer<T>(args.k_cache_SXHK), pointer<T>(args.v_cache_SXHV), arguments.offsets,
             arguments.num_sequences, arguments.cache_lengths, arguments.cache_rows, arguments.H,
             arguments.K, arguments.V);
      arguments.k = pointer<const T>(args.k_cache_SXHK);
      arguments.v = pointer<const T>(args.v_cache_SXHV);
      arguments.v_row_stride = arguments.H * arguments.V;
      arguments.v_head_stride = arguments.V;
    }
    launch(device, "causal_attention_forward_rows_kernel", causal_attention_forward_rows_kernel<T>,
           blocks, kThreads, 0, arguments, pointer<T>(args.o_RHV), pointer<float>(args.lse_RH));
  });
}

void attention_rows_backward(CudaDevice& device, const ops::CausalAttentionBackward& args,
                             const Tensor& delta_RH) {
  with_activation_type("causal_attention_backward", args.q_RHK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const RowArguments<T> arguments = row_arguments<T>(args);
    const int64_t blocks = arguments.R * arguments.H;
    launch(device, "causal_attention_backward_query_rows_kernel",
           causal_attention_backward_query_rows_kernel<T>, blocks, kThreads, 0, arguments,
           pointer<const T>(args.do_RHV), pointer<const float>(args.lse_RH),
           pointer<const float>(delta_RH), pointer<T>(args.dq_RHK));
    launch(device, "causal_attention_backward_key_rows_kernel",
           causal_attention_backward_key_rows_kernel<T>, blocks, kThreads, 0, arguments,
           pointer<const T>(args.do_RHV), pointer<const float>(args.lse_RH),
           pointer<const float>(delta_RH), pointer<T>(args.dk_RHK), pointer<T>(args.dv_RHV),
           args.dv_RHV.stride(0), args.dv_RHV.stride(1));
  });
}

void attention_backward_delta(CudaDevice& device, const ops::CausalAttentionBackward& args,
                              const Tensor& delta_RH) {
  const int64_t units = args.q_RHK.size(0) * args.q_RHK.size(1);
  const auto run_heads = [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    launch(device, "causal_attention_backward_delta_heads_kernel",
           causal_attention_backward_delta_heads_kernel<kLanes>,
           divide_up(units, HeadTile<kLanes>::kTilesPerBlock), kHeadBlock, 0,
           pointer<const __nv_bfloat16>(args.do_RHV), pointer<const __nv_bfloat16>(args.o_RHV),
           pointer<float>(delta_RH), units);
  };
  if (!all_aligned(args.do_RHV, args.o_RHV) ||
      !with_head_lanes(args.q_RHK.dtype(), args.v_RHV.size(2), run_heads)) {
    with_activation_type("causal_attention_backward", args.q_RHK.dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      launch(device, "causal_attention_backward_delta_kernel",
             causal_attention_backward_delta_kernel<T>, divide_up(units, kWarps), kThreads, 0,
             pointer<const T>(args.do_RHV), pointer<const T>(args.o_RHV), pointer<float>(delta_RH),
             units, narrow<int>(args.v_RHV.size(2)));
    });
  }
}

void attention_backward_begins(CudaDevice& device, const ops::CausalAttentionBackward& args,
                               const Tensor& row_begins_R) {
  const int64_t R = args.q_RHK.size(0);
  launch(device, "causal_attention_backward_begins_kernel", causal_attention_backward_begins_kernel,
         divide_up(R, kThreads), kThreads, 0, pointer<const int32_t>(args.sequences.device_offsets),
         narrow<int>(args.sequences.num()), pointer<int32_t>(row_begins_R), R);
}

}  // namespace deltatrain::backend::cuda
