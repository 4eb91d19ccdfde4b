// One token per sequence through convolution, norms, gates, the delta rule and the output norm: a
// block per sequence and query head does everything for the value heads that share it.
#include <cmath>
#include <string>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

using ops::DecayForm;
using ops::GateActivation;
constexpr int kThreads = 4 * kWarpSize;
constexpr int kVector = 4;
constexpr int kMaxTaps = 8;

template <class T>
struct StepInputs {
  const T* qk;
  const T* v;
  const T* a;
  const T* b;
  const T* z;  // or null
  int64_t qk_stride, v_stride, a_stride, b_stride, z_stride;
  const float* qk_conv;
  const float* v_conv;
  const float* A_log;
  const float* dt_bias;
  const float* norm_weight;
  float* qk_history;
  float* v_history;
  float* state;
  T* y;
  int H, G, taps, gate_width;
  DecayForm form;
  float bound, beta_scale, scale, l2_eps, norm_eps;
  GateActivation activation;
};

// A thread owns four columns of every kGroups-th row of the state.
template <int K, int V>
struct StateShape {
  static constexpr int kColumns = V / kVector;
  static constexpr int kGroups = kThreads / kColumns;
  static constexpr int kRows = (K + kGroups - 1) / kGroups;
  static_assert(kThreads % kColumns == 0 && V <= kThreads && K <= kThreads);
};

template <int K, int V>
struct alignas(16) StepShared {
  float by_k[StateShape<K, V>::kGroups][V];  // parts of S^T k and S^T q, S decayed
  float by_q[StateShape<K, V>::kGroups][V];
  float q[K];
  float k[K];
  float decay[K];
  float v[V];
  float sums[kThreads / kWarpSize];
};

// The channel's output of the convolution with SiLU; its history moves on by one.
template <class T>
__device__ __forceinline__ float convolve_step(float newest, const float* weight, float* history,
                                               int64_t X, int64_t channel, int taps) {
  float past[kMaxTaps - 1];
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) past[j] = j < taps - 1 ? history[j * X + channel] : 0.0F;
  const float* w = weight + channel * taps;
  float z = 0;
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j < taps - 1) z += w[j] * past[j];
  }
  z += w[taps - 1] * newest;
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j < taps - 2) history[j * X + channel] = past[j + 1];
  }
  history[(taps - 2) * X + channel] = newest;
  return z * sigmoid<T>(z);
}

// Grid: one block per sequence and query head. Bytes: the states of its value heads and the
// histories, in and out; everything else is small.
template <class T, int K, int V>
__global__ void __launch_bounds__(kThreads) delta_step_kernel(const StepInputs<T> args) {
  using S = StateShape<K, V>;
  auto& s = *dynamic_shared<StepShared<K, V>>();
  const int64_t sequence = static_cast<int64_t>(blockIdx.x) / args.H;
  const int head = static_cast<int>(blockIdx.x) % args.H;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / S::kColumns;
  const int column = thread % S::kColumns * kVector;
  const int values_per_head = args.G / args.H;

  const int64_t qk_width = int64_t{2} * args.H * K;
  float* qk_history = args.qk_history + sequence * (args.taps - 1) * qk_width;
  float q = 0;
  float k = 0;
  if (thread < K) {
    const int64_t q_channel = head * K + thread;
    const int64_t k_channel = args.H * K + q_channel;
    const T* qk = args.qk + sequence * args.qk_stride;
    q = convolve_step<T>(to_float(qk[q_channel]), args.qk_conv, qk_history, qk_width, q_channel,
                         args.taps);
    k = convolve_step<T>(to_float(qk[k_channel]), args.qk_conv, qk_history, qk_width, k_channel,
                         args.taps);
  }
  q *= rsqrtf(sum_over_block<kThreads>(q * q, s.sums) + args.l2_eps);
  k *= rsqrtf(sum_over_block<kThreads>(k * k, s.sums) + args.l2_eps);
  const float q_k = sum_over_block<kThreads>(q * k, s.sums);
  if (thread < K) {
    s.q[thread] = q;
    s.k[thread] = k;
  }

  const int64_t v_width = int64_t{args.G} * V;
  float* v_history = args.v_history + sequence * (args.taps - 1) * v_width;
  for (int i = 0; i < values_per_head; ++i) {
    const int value_head = head * values_per_head + i;
    float* state_of_head = args.state + (sequence * args.G + value_head) * K * V + column;
    float state[S::kRows][kVector];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = group + r * S::kGroups;
#pragma unroll
      for (int e = 0; e < kVector; ++e) state[r][e] = 0;
      if (row < K) load_values<float, kVector>(state_of_head + row * V, state[r]);
    }
    if (thread < V) {
      const int64_t channel = value_head * V + thread;
      s.v[thread] = convolve_step<T>(to_float(args.v[sequence * args.v_stride + channel]),
                                     args.v_conv, v_history, v_width, channel, args.taps);
    }
    if (thread < K) {
      const int at = value_head * args.gate_width + (args.gate_width == 1 ? 0 : thread);
      const float x = to_float(args.a[sequence * args.a_stride + at]) + args.dt_bias[at];
      const float rate = expf(args.A_log[value_head]);
      const float softplus = fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
      s.decay[thread] =
          expf(args.form == DecayForm::kSoftplus ? -rate * softplus
                                                 : args.bound * sigmoid<float>(rate * x));
    }
    __syncthreads();

    float by_k[kVector] = {};
    float by_q[kVector] = {};
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = group + r * S::kGroups;
      if (row >= K) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        state[r][e] *= s.decay[row];
        by_k[e] += s.k[row] * state[r][e];
        by_q[e] += s.q[row] * state[r][e];
      }
    }
    store_values(&s.by_k[group][column], by_k);
    store_values(&s.by_q[group][column], by_q);
    __syncthreads();
    const float beta =
        args.beta_scale * sigmoid<float>(to_float(args.b[sequence * args.b_stride + value_head]));
    float d[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      float sum_k = 0;
#pragma unroll
      for (int other = 0; other < S::kGroups; ++other) sum_k += s.by_k[other][column + e];
      d[e] = beta * (s.v[column + e] - sum_k);
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = group + r * S::kGroups;
      if (row >= K) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) state[r][e] += s.k[row] * d[e];
      store_values(state_of_head + row * V, state[r]);
    }

    // Thread c owns column c from here on.
    float o = 0;
    if (thread < V) {
      float sum_k = 0;
      float sum_q = 0;
#pragma unroll
      for (int other = 0; other < S::kGroups; ++other) {
        sum_k += s.by_k[other][thread];
        sum_q += s.by_q[other][thread];
      }
      o = args.scale * (sum_q + q_k * beta * (s.v[thread] - sum_k));
    }
    const float mean_square = sum_over_block<kThreads>(o * o, s.sums) * (1.0F / V);
    if (thread < V) {
      float y = o * rsqrtf(mean_square + args.norm_eps) * args.norm_weight[thread];
      const int64_t at = value_head * V + thread;
      if (args.z != nullptr) {
        const float z = to_float(args.z[sequence * args.z_stride + at]);
        y *= args.activation == GateActivation::kSilu ? z * sigmoid<T>(z) : sigmoid<T>(z);
      }
      args.y[sequence * v_width + at] = from_float<T>(y);
    }
    // The block sum ended with a barrier: shared memory may be written again.
  }
}

template <class T>
StepInputs<T> inputs_of(const ops::DeltaStep& args) {
  StepInputs<T> in{};
  const int64_t K = args.state_SGKV.size(2);
  in.qk = pointer<const T>(args.qk_SX);
  in.v = pointer<const T>(args.v_SX);
  in.a = pointer<const T>(args.a_SGK);
  in.b = pointer<const T>(args.b_SG);
  in.z = pointer<const T>(args.z_SX);
  in.qk_stride = args.qk_SX.stride(0);
  in.v_stride = args.v_SX.stride(0);
  in.a_stride = args.a_SGK.stride(0);
  in.b_stride = args.b_SG.stride(0);
  in.z_stride = args.z_SX.defined() ? args.z_SX.stride(0) : 0;
  in.qk_conv = pointer<const float>(args.qk_conv_XW);
  in.v_conv = pointer<const float>(args.v_conv_XW);
  in.A_log = pointer<const float>(args.A_log_G);
  in.dt_bias = pointer<const float>(args.dt_bias_GK);
  in.norm_weight = pointer<const float>(args.norm_weight_V);
  in.qk_history = pointer<float>(args.qk_history_SWX);
  in.v_history = pointer<float>(args.v_history_SWX);
  in.state = pointer<float>(args.state_SGKV);
  in.y = pointer<T>(args.y_SX);
  in.H = narrow<int>(args.qk_SX.size(1) / (2 * K));
  in.G = narrow<int>(args.state_SGKV.size(1));
  in.taps = narrow<int>(args.qk_conv_XW.size(1));
  in.gate_width = narrow<int>(args.a_SGK.size(2));
  in.form = args.form;
  in.bound = static_cast<float>(args.lower_bound);
  in.beta_scale = static_cast<float>(args.beta_scale);
  in.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(K)));
  in.l2_eps = static_cast<float>(ops::L2NormForward{}.eps);
  in.norm_eps = static_cast<float>(args.norm_eps);
  in.activation = args.activation;
  return in;
}

}  // namespace

void delta_step(const Context& context, const ops::DeltaStep& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t S = args.state_SGKV.size(0);
  const int64_t K = args.state_SGKV.size(2);
  const int64_t V = args.state_SGKV.size(3);
  with_activation_type("delta_step", args.qk_SX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const StepInputs<T> in = inputs_of<T>(args);
    const auto run = [&]<int kK, int kV>() {
      launch(device, "delta_step_kernel", delta_step_kernel<T, kK, kV>, S * in.H, kThreads,
             sizeof(StepShared<kK, kV>), in);
    };
    if (K == 16 && V == 16) return run.template operator()<16, 16>();
    if (K == 16 && V == 32) return run.template operator()<16, 32>();
    if (K == 32 && V == 64) return run.template operator()<32, 64>();
    if (K == 64 && V == 64) return run.template operator()<64, 64>();
    if (K == 64 && V == 128) return run.template operator()<64, 128>();
    if (K == 128 && V == 128) return run.template operator()<128, 128>();
    throw UnsupportedError(error_text("delta_step", "head size",
                                      "one of 16x16, 16x32, 32x64, 64x64, 64x128, 128x128 on cuda",
                                      std::to_string(K) + "x" + std::to_string(V)));
  });
}

}  // namespace deltatrain::backend::cuda
