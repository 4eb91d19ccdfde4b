// The recurrence token by token in f32, forward and backward: the device's own reference for the
// bf16 kernels.
//
// One block per (sequence, value head). A thread holds 16 rows of one column of the state, row =
// 16-th part interleaved: r * parts + part with parts = K / 16 neighbouring threads per column.
//
// Backward replays kRecurrenceRows tokens from the saved state entering them, keeps every decayed
// state S' and residual u in scratch, and walks back:
//
//   dS += scale q do^T            dq = scale S do        dd = dS^T k
//   du  = beta dd = dv            dk = dS d - S' du      dbeta = dd . u
//   dS' = dS - k du^T             dg = rows of dS' . S'  dS <- exp(g) dS'
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kHeld = 16;  // rows of the state per thread
constexpr int kBatch = kRecurrenceRows;
constexpr int kMaxThreads = 1024;

// Sum over the `parts` neighbouring lanes of a column.
__device__ __forceinline__ float sum_over_parts(float value, int parts) {
  for (int distance = 1; distance < parts; distance *= 2)
    value += __shfl_xor_sync(kAllLanes, value, distance, kWarpSize);
  return value;
}

// Sum over the columns of a warp: lanes of the same part.
__device__ __forceinline__ float sum_over_columns(float value, int parts) {
  for (int distance = parts; distance < kWarpSize; distance *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance, kWarpSize);
  }
  return value;
}

struct TokenTiles {
  float* q;      // [kBatch, K]
  float* k;      // [kBatch, K]
  float* decay;  // [kBatch, K]
};

__device__ __forceinline__ void load_tokens(const TokenTiles& tiles,
                                            const RecurrenceArguments& args, int64_t row, int rows,
                                            int value_head) {
  const int head = value_head / (args.G / args.H);
  for (int i = static_cast<int>(threadIdx.x); i < rows * args.K;
       i += static_cast<int>(blockDim.x)) {
    const int64_t token = row + i / args.K;
    const int c = i % args.K;
    tiles.q[i] = args.q[(token * args.H + head) * args.K + c];
    tiles.k[i] = args.k[(token * args.H + head) * args.K + c];
    tiles.decay[i] = expf(
        args.g[(token * args.G + value_head) * args.gate_width + (args.gate_width == 1 ? 0 : c)]);
  }
}

// Grid: one block per (sequence, value head).
__global__ void __launch_bounds__(kMaxThreads)
    gated_delta_rule_forward_recurrence_kernel(const RecurrenceArguments args) {
  auto* shared = dynamic_shared<float>();
  const TokenTiles tiles = {shared, shared + kBatch * args.K, shared + 2 * kBatch * args.K};
  const int sequence = static_cast<int>(blockIdx.x) / args.G;
  const int value_head = static_cast<int>(blockIdx.x) % args.G;
  const int parts = args.K / kHeld;
  const int part = static_cast<int>(threadIdx.x) % parts;
  const int v = static_cast<int>(threadIdx.x) / parts;
  const bool active = v < args.V;
  const int64_t begin = args.map.offsets[sequence];
  const int64_t end = args.map.offsets[sequence + 1];
  const int64_t state_at = (int64_t{sequence} * args.G + value_head) * args.K * args.V;
  int64_t saved =
      (int64_t{first_chunk_of(args.map, sequence)} * (kChunk / kBatch) * args.G + value_head) *
      args.K * args.V;

  float s[kHeld];
#pragma unroll
  for (int r = 0; r < kHeld; ++r) {
    s[r] = active && args.initial_state != nullptr
               ? args.initial_state[state_at + int64_t{r * parts + part} * args.V + v]
               : 0.0F;
  }
  for (int64_t first = begin; first < end; first += kBatch) {
    const int rows = end - first < kBatch ? static_cast<int>(end - first) : kBatch;
    __syncthreads();
    load_tokens(tiles, args, first, rows, value_head);
    __syncthreads();
    if (args.states != nullptr && active) {
#pragma unroll
      for (int r = 0; r < kHeld; ++r)
        args.states[saved + int64_t{r * parts + part} * args.V + v] = s[r];
    }
    saved += int64_t{args.G} * args.K * args.V;
    for (int t = 0; t < rows; ++t) {
      const int64_t token = first + t;
      float dot = 0;
#pragma unroll
      for (int r = 0; r < kHeld; ++r) {
        const int c = t * args.K + r * parts + part;
        s[r] *= tiles.decay[c];
        dot += s[r] * tiles.k[c];
      }
      dot = sum_over_parts(dot, parts);
      const float value =
          active ? args.v[token * args.v_stride + int64_t{value_head} * args.V + v] : 0.0F;
      const float d = args.beta[token * args.G + value_head] * (value - dot);
      float out = 0;
#pragma unroll
      for (int r = 0; r < kHeld; ++r) {
        const int c = t * args.K + r * parts + part;
        s[r] += tiles.k[c] * d;
        out += s[r] * tiles.q[c];
      }
      out = sum_over_parts(out, parts);
      if (active && part == 0)
        args.o[(token * args.G + value_head) * args.V + v] = args.scale * out;
    }
  }
  if (args.final_state != nullptr && active) {
#pragma unroll
    for (int r = 0; r < kHeld; ++r)
      args.final_state[state_at + int64_t{r * parts + part} * args.V + v] = s[r];
  }
}

// Grid: one block per (sequence, value head) from args.first_block on.
__global__ void __launch_bounds__(kMaxThreads)
    gated_delta_rule_backward_recurrence_kernel(const RecurrenceArguments args) {
  const int K = args.K;
  const int V = args.V;
  auto* shared = dynamic_shared<float>();
  const TokenTiles tiles = {shared, shared + kBatch * K, shared + 2 * kBatch * K};
  float* s_u = shared + 3 * kBatch * K;  // [kBatch, V]
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int sum_width = 3 * K + 4;   // dq, dk, dg, dbeta of a token, from one warp
  float* s_sums = s_u + kBatch * V;  // [2, warps, sum_width], taken in turns

  const int64_t block = args.first_block + blockIdx.x;
  const int sequence = static_cast<int>(block / args.G);
  const int value_head = static_cast<int>(block % args.G);
  const int head = value_head / (args.G / args.H);
  const int thread = static_cast<int>(threadIdx.x);
  const int parts = K / kHeld;
  const int part = thread % parts;
  const int v = thread / parts;
  const bool active = v < V;
  const int64_t begin = args.map.offsets[sequence];
  const int64_t end = args.map.offsets[sequence + 1];
  const int64_t state_at = (int64_t{sequence} * args.G + value_head) * K * V;
  float* decayed =
      args.scratch + static_cast<int64_t>(blockIdx.x) * kBatch * K * V;  // [kBatch, K, V]

  float ds[kHeld];
#pragma unroll
  for (int r = 0; r < kHeld; ++r) {
    ds[r] = active && args.d_final_state != nullptr
                ? args.d_final_state[state_at + int64_t{r * parts + part} * V + v]
                : 0.0F;
  }
  int turn = 0;
  for (int64_t batch = (end - begin - 1) / kBatch; batch >= 0; --batch) {
    const int64_t first = begin + batch * kBatch;
    const int rows = end - first < kBatch ? static_cast<int>(end - first) : kBatch;
    const int64_t saved =
        ((int64_t{first_chunk_of(args.map, sequence)} * (kChunk / kBatch) + batch) * args.G +
         value_head) *
        K * V;
    __syncthreads();
    load_tokens(tiles, args, first, rows, value_head);
    __syncthreads();
    float s[kHeld];
#pragma unroll
    for (int r = 0; r < kHeld; ++r)
      s[r] = active ? args.states[saved + int64_t{r * parts + part} * V + v] : 0.0F;
    for (int t = 0; t < rows; ++t) {
      const int64_t token = first + t;
      float dot = 0;
#pragma unroll
      for (int r = 0; r < kHeld; ++r) {
        const int c = t * K + r * parts + part;
        s[r] *= tiles.decay[c];
        dot += s[r] * tiles.k[c];
        if (active) decayed[(int64_t{t} * K + r * parts + part) * V + v] = s[r];
      }
      dot = sum_over_parts(dot, parts);
      const float value =
          active ? args.v[token * args.v_stride + int64_t{value_head} * V + v] : 0.0F;
      const float u = value - dot;
      if (active && part == 0) s_u[t * V + v] = u;
      const float d = args.beta[token * args.G + value_head] * u;
#pragma unroll
      for (int r = 0; r < kHeld; ++r) s[r] += tiles.k[t * K + r * parts + part] * d;
    }
    __syncthreads();
    for (int t = rows - 1; t >= 0; --t) {
      const int64_t token = first + t;
      const float beta = args.beta[token * args.G + value_head];
      const float u = active ? s_u[t * V + v] : 0.0F;
      const float d = beta * u;
      const float d_o =
          active ? args.scale * args.d_o[(token * args.G + value_head) * V + v] : 0.0F;
      float dd = 0;
#pragma unroll
      for (int r = 0; r < kHeld; ++r) {
        const int c = t * K + r * parts + part;
        ds[r] += tiles.q[c] * d_o;
        dd += ds[r] * tiles.k[c];
      }
      dd = sum_over_parts(dd, parts);
      const float du = beta * dd;
      if (active && part == 0) args.dv[token * args.dv_stride + int64_t{value_head} * V + v] = du;
      float* sums = s_sums + (turn * num_warps + warp_id()) * sum_width;
#pragma unroll
      for (int r = 0; r < kHeld; ++r) {
        const int channel = r * parts + part;
        const int c = t * K + channel;
        const float before = active ? decayed[(int64_t{t} * K + channel) * V + v] : 0.0F;
        const float key = tiles.k[c];
        float dq = (before + key * d) * d_o;
        float dk = ds[r] * d - before * du;
        ds[r] -= key * du;
        float dg = ds[r] * before;
        ds[r] *= tiles.decay[c];
        dq = sum_over_columns(dq, parts);
        dk = sum_over_columns(dk, parts);
        dg = sum_over_columns(dg, parts);
        if (lane_id() < parts) {
          sums[channel] = dq;
          sums[K + channel] = dk;
          sums[2 * K + channel] = dg;
        }
      }
      const float dbeta = sum_over_columns(dd * u, parts);
      if (lane_id() == 0) sums[3 * K] = dbeta;
      __syncthreads();
      const float* all = s_sums + turn * num_warps * sum_width;
      turn ^= 1;
      for (int i = thread; i < 2 * K; i += static_cast<int>(blockDim.x)) {
        float sum = 0;
        for (int warp = 0; warp < num_warps; ++warp) sum += all[warp * sum_width + i];
        const int c = i % K;
        float* out = i < K ? args.dq : args.dk;
        out[args.per_value_head ? (token * args.G + value_head) * K + c
                                : (token * args.H + head) * K + c] = sum;
      }
      if (args.gate_width > 1) {
        for (int c = thread; c < K; c += static_cast<int>(blockDim.x)) {
          float sum = 0;
          for (int warp = 0; warp < num_warps; ++warp) sum += all[warp * sum_width + 2 * K + c];
          args.dg[(token * args.G + value_head) * K + c] = sum;
        }
      } else if (warp_id() == 0) {
        float sum = 0;
        for (int c = lane_id(); c < K; c += kWarpSize) {
          for (int warp = 0; warp < num_warps; ++warp) sum += all[warp * sum_width + 2 * K + c];
        }
        sum = sum_over_lanes<kWarpSize>(sum);
        if (lane_id() == 0) args.dg[token * args.G + value_head] = sum;
      }
      if (thread == 0) {
        float sum = 0;
        for (int warp = 0; warp < num_warps; ++warp) sum += all[warp * sum_width + 3 * K];
        args.dbeta[token * args.G + value_head] = sum;
      }
    }
  }
  if (args.d_initial_state != nullptr && active) {
#pragma unroll
    for (int r = 0; r < kHeld; ++r)
      args.d_initial_state[state_at + int64_t{r * parts + part} * V + v] = ds[r];
  }
}

int num_threads(int64_t K, int64_t V) {
  return static_cast<int>(round_up(V * (K / kHeld), kWarpSize));
}

}  // namespace

int64_t recurrence_forward_shared_bytes(int64_t K) {
  return 3 * kBatch * K * static_cast<int64_t>(sizeof(float));
}

int64_t recurrence_backward_shared_bytes(int64_t K, int64_t V) {
  const int64_t sums = 2 * num_threads(K, V) / kWarpSize * (3 * K + 4);
  return (3 * kBatch * K + kBatch * V + sums) * static_cast<int64_t>(sizeof(float));
}

void recurrence_forward(CudaDevice& device, const RecurrenceArguments& args, int64_t S) {
  const auto bytes = static_cast<size_t>(recurrence_forward_shared_bytes(args.K));
  allow_shared_bytes(gated_delta_rule_forward_recurrence_kernel, bytes);
  launch(device, "gated_delta_rule_forward_recurrence_kernel",
         gated_delta_rule_forward_recurrence_kernel, S * args.G, num_threads(args.K, args.V), bytes, args);
}

void recurrence_backward(CudaDevice& device, const RecurrenceArguments& args, int64_t S,
                         int64_t blocks_at_once) {
  const int threads = num_threads(args.K, args.V);
  const auto bytes = static_cast<size_t>(recurrence_backward_shared_bytes(args.K, args.V));
  allow_shared_bytes(gated_delta_rule_backward_recurrence_kernel, bytes);
  RecurrenceArguments part = args;
  for (part.first_block = 0; part.first_block < S * args.G; part.first_block += blocks_at_once) {
    const int64_t left = S * args.G - part.first_block;
    launch(device, "gated_delta_rule_backward_recurrence_kernel",
           gated_delta_rule_backward_recurrence_kernel,
           left < blocks_at_once ? left : blocks_at_once, threads, bytes, part);
  }
}

}  // namespace deltatrain::backend::cuda::delta
