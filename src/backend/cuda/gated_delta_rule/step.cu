// One token per sequence: the recurrence itself, bound by reading and writing the states once.
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kThreads = 4 * kWarpSize;
constexpr int kVector = 4;

// A thread owns four columns of every (kThreads / (V / 4))-th row.
template <int K, int V>
struct Shape {
  static constexpr int kColumns = V / kVector;               // threads along a row
  static constexpr int kGroups = kThreads / kColumns;        // rows at a time
  static constexpr int kRows = (K + kGroups - 1) / kGroups;  // rows per thread
  static_assert(kThreads % kColumns == 0);
};

template <int K, int V>
struct alignas(16) Shared {
  float q[K];
  float k[K];
  float decay[K];
  float by_k[Shape<K, V>::kGroups][V];  // parts of S^T k and S^T q, S decayed
  float by_q[Shape<K, V>::kGroups][V];
};

// Grid: one block per (sequence, value head). Bytes: the state K V f32 in and out.
template <class T, int K, int V>
__global__ void __launch_bounds__(kThreads)
    gated_delta_rule_forward_step_kernel(const StepArguments<T> args) {
  using S = Shape<K, V>;
  auto& s = *dynamic_shared<Shared<K, V>>();
  const int64_t sequence = static_cast<int64_t>(blockIdx.x) / args.G;
  const int value_head = static_cast<int>(blockIdx.x) % args.G;
  const int head = value_head / (args.G / args.H);
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / S::kColumns;
  const int column = thread % S::kColumns * kVector;
  const int64_t state_at = static_cast<int64_t>(blockIdx.x) * K * V + column;

  float state[S::kRows][kVector];
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
    const int row = group + i * S::kGroups;
#pragma unroll
    for (int e = 0; e < kVector; ++e) state[i][e] = 0;
    if (row < K && args.initial_state != nullptr) {
      load_values<float, kVector>(args.initial_state + state_at + row * V, state[i]);
    }
  }
  if (thread < K) {
    s.q[thread] = to_float(args.q[(sequence * args.H + head) * K + thread]);
    s.k[thread] = to_float(args.k[(sequence * args.H + head) * K + thread]);
    s.decay[thread] = expf(args.g[(sequence * args.G + value_head) * args.gate_width +
                                  (args.gate_width == 1 ? 0 : thread)]);
  }
  __syncthreads();
  float by_k[kVector] = {};
  float by_q[kVector] = {};
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
    const int row = group + i * S::kGroups;
    if (row >= K) continue;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      state[i][e] *= s.decay[row];
      by_k[e] += s.k[row] * state[i][e];
      by_q[e] += s.q[row] * state[i][e];
    }
  }
  store_values(&s.by_k[group][column], by_k);
  store_values(&s.by_q[group][column], by_q);
  __syncthreads();
  float q_k = 0;
#pragma unroll 8
  for (int row = 0; row < K; ++row) q_k += s.q[row] * s.k[row];
  const float beta = args.beta[sequence * args.G + value_head];
  float d[kVector];
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    float sum_k = 0;
    float sum_q = 0;
#pragma unroll
    for (int other = 0; other < S::kGroups; ++other) {
      sum_k += s.by_k[other][column + e];
      sum_q += s.by_q[other][column + e];
    }
    d[e] =
        beta * (to_float(args.v[sequence * args.v_stride + value_head * V + column + e]) - sum_k);
    if (group == 0) {
      args.o[(sequence * args.G + value_head) * V + column + e] =
          from_float<T>(args.scale * (sum_q + q_k * d[e]));
    }
  }
  if (args.final_state == nullptr) return;
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
    const int row = group + i * S::kGroups;
    if (row >= K) continue;
#pragma unroll
    for (int e = 0; e < kVector; ++e) state[i][e] += s.k[row] * d[e];
    store_values(args.final_state + state_at + row * V, state[i]);
  }
}

template <class T, int K, int V>
void run(CudaDevice& device, const StepArguments<T>& args, int64_t S) {
  launch(device, "gated_delta_rule_forward_step_kernel",
         gated_delta_rule_forward_step_kernel<T, K, V>, S * args.G, kThreads, sizeof(Shared<K, V>),
         args);
}

template <class T>
void run_any(CudaDevice& device, const StepArguments<T>& args, int64_t S, int64_t K, int64_t V) {
  if (K == 16 && V == 16) return run<T, 16, 16>(device, args, S);
  if (K == 16 && V == 32) return run<T, 16, 32>(device, args, S);
  if (K == 32 && V == 64) return run<T, 32, 64>(device, args, S);
  if (K == 64 && V == 64) return run<T, 64, 64>(device, args, S);
  if (K == 64 && V == 128) return run<T, 64, 128>(device, args, S);
  if (K == 128 && V == 128) return run<T, 128, 128>(device, args, S);
  throw InternalError("gated_delta_rule: no step for heads of " + std::to_string(K) + " x " +
                      std::to_string(V));
}

}  // namespace

void step_forward(CudaDevice& device, const StepArguments<Bf16>& args, int64_t S, int64_t K,
                  int64_t V) {
  run_any(device, args, S, K, V);
}
void step_forward(CudaDevice& device, const StepArguments<float>& args, int64_t S, int64_t K,
                  int64_t V) {
  run_any(device, args, S, K, V);
}

}  // namespace deltatrain::backend::cuda::delta
