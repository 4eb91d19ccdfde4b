// One token per sequence through convolution, norms, gates, the delta rule and the output norm: a
// block per sequence and query head does everything for the value heads that share it.
#include <algorithm>
#include <cmath>
#include <string>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda {

namespace {

using ops::DecayForm;
using ops::GateActivation;
constexpr int kThreads = 4 * kWarpSize;  // of a value head
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
  // In place of a and z: low-rank pairs of rank V.
  const T* a_low;
  const T* a_weight;
  const T* z_low;
  const T* z_weight;
  const float* z_bias;
  int64_t a_low_stride, z_low_stride;
  const float* qk_conv;
  const float* v_conv;
  const float* A_log;
  const float* dt_bias;
  const float* norm_weight;
  float* qk_history;
  float* v_history;
  float* state;
  T* y;
  unsigned blocks;  // with work
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
struct alignas(16) HeadShared {
  float by_k[StateShape<K, V>::kGroups][V];  // parts of S^T k and S^T q, S decayed
  float by_q[StateShape<K, V>::kGroups][V];
  float decay[K];
  float v[V];
  float z[V];  // kLowRank
  float sums[kThreads / kWarpSize];
};

template <int K, int V, int kHeads>
struct alignas(16) StepShared {
  HeadShared<K, V> heads[kHeads];
  float q[K];
  float k[K];
  float a_low[V];  // kLowRank
  float z_low[V];
  float sums[3][kHeads * kThreads / kWarpSize];
};

// A channel's part of a convolution, before the newest input is known: past inputs times weights.
struct Channel {
  float past[kMaxTaps - 1];
  float sum = 0;
  float last_weight = 0;

  __device__ __forceinline__ void load(const float* weight, const float* history, int64_t X,
                                       int64_t channel, int taps) {
    sum = 0;
#pragma unroll
    for (int j = 0; j < kMaxTaps - 1; ++j) {
      past[j] = j < taps - 1 ? history[j * X + channel] : 0.0F;
      if (j < taps - 1) sum += weight[channel * taps + j] * past[j];
    }
    last_weight = weight[channel * taps + taps - 1];
  }

  // The output of the convolution with SiLU; the history moves on by one.
  template <class T>
  __device__ __forceinline__ float step(float newest, float* history, int64_t X, int64_t channel,
                                        int taps) const {
#pragma unroll
    for (int j = 0; j < kMaxTaps - 2; ++j) {
      if (j < taps - 2) history[j * X + channel] = past[j + 1];
    }
    history[(taps - 2) * X + channel] = newest;
    const float z = sum + last_weight * newest;
    return z * sigmoid<T>(z);
  }
};

// A row of the second product of a low-rank pair.
template <class T, int kRank>
struct LowRankRow {
  static constexpr int kWide = 8;
  Pack<T, kWide> weight[kRank / kWide];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int p = 0; p < kRank / kWide; ++p) weight[p] = load_pack<T, kWide>(from + p * kWide);
  }
  // Rounded as an output of linear_forward.
  __device__ __forceinline__ float output(const float* s_low, float bias) const {
    float sums[kWide] = {};
#pragma unroll
    for (int p = 0; p < kRank / kWide; ++p) {
      float w[kWide];
      weight[p].unpack(w);
#pragma unroll
      for (int e = 0; e < kWide; ++e) sums[e] += w[e] * s_low[p * kWide + e];
    }
#pragma unroll
    for (int half = kWide / 2; half > 0; half /= 2) {
#pragma unroll
      for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
    }
    return to_float(from_float<T>(sums[0] + bias));
  }
};

// Grid: one block per sequence and query head, in it kHeads times kThreads threads, each for a value head at a time.
// What no op ahead writes is loaded before the wait. Blocks past args.blocks have no work. Bytes: the states of its value heads and the histories, in and
// out; with kLowRank the heads' rows of the second products; everything else is small.
template <class T, int K, int V, int kHeads, bool kLowRank>
__global__ void __launch_bounds__(kHeads* kThreads) delta_step_kernel(const StepInputs<T> args) {
  using S = StateShape<K, V>;
  constexpr int kBlock = kHeads * kThreads;
  auto& s = *dynamic_shared<StepShared<K, V, kHeads>>();
  if (blockIdx.x >= args.blocks) {
    let_next_kernel_begin();
    wait_for_kernels_ahead();
    return;
  }
  const int64_t sequence = static_cast<int64_t>(blockIdx.x) / args.H;
  const int head = static_cast<int>(blockIdx.x) % args.H;
  const int block_thread = static_cast<int>(threadIdx.x);
  const int own = same_in_warp(block_thread / kThreads);  // of the block's heads at a time
  const int thread = block_thread % kThreads;
  auto& h = s.heads[own];
  const int group = thread / S::kColumns;
  const int column = thread % S::kColumns * kVector;
  const int values_per_head = args.G / args.H;

  const int64_t qk_width = int64_t{2} * args.H * K;
  const int64_t v_width = int64_t{args.G} * V;
  float* qk_history = args.qk_history + sequence * (args.taps - 1) * qk_width;
  float* v_history = args.v_history + sequence * (args.taps - 1) * v_width;
  const int64_t q_channel = head * K + thread;
  const int64_t k_channel = args.H * K + q_channel;
  const bool has_qk = own == 0 && thread < K;

  Channel q_taps;
  Channel k_taps;
  Channel v_taps;
  float state[S::kRows][kVector];
  float rate = 0;
  float dt_bias = 0;
  float low_bias = 0;  // of the row that this thread holds
  float norm_weight = 0;
  // Thread j's row of the second products, decay rows first, where there is a thread for each.
  constexpr bool kHoldsRow = kLowRank && K + V <= kThreads && sizeof(T) * V <= 128;
  LowRankRow<T, kLowRank ? V : 8> low_row;
  const auto low_weight = [&](int value_head, int j) {
    return j < K ? args.a_weight + (int64_t{value_head} * K + j) * V
                 : args.z_weight + (int64_t{value_head} * V + j - K) * V;
  };
  const auto state_of_head = [&](int value_head) {
    return args.state + (sequence * args.G + value_head) * K * V + column;
  };
  const auto load_value_head = [&](int value_head) {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = group + r * S::kGroups;
#pragma unroll
      for (int e = 0; e < kVector; ++e) state[r][e] = 0;
      if (row < K) load_values<float, kVector>(state_of_head(value_head) + row * V, state[r]);
    }
    if (thread < V) {
      v_taps.load(args.v_conv, v_history, v_width, value_head * V + thread, args.taps);
    }
    if (thread < K) {
      rate = args.A_log[value_head];
      dt_bias = args.dt_bias[value_head * args.gate_width + (args.gate_width == 1 ? 0 : thread)];
    }
    if constexpr (kHoldsRow) {
      if (thread < K + V) low_row.load(low_weight(value_head, thread));
      low_bias = thread >= K && thread < K + V
                     ? args.z_bias[int64_t{value_head} * V + thread - K]
                     : 0.0F;
    } else if constexpr (kLowRank) {
      for (int j = thread; j < K + V; j += kThreads) prefetch_line(low_weight(value_head, j));
    }
  };
  const int first_head = head * values_per_head + own;
  let_next_kernel_begin();
  if (has_qk) {
    q_taps.load(args.qk_conv, qk_history, qk_width, q_channel, args.taps);
    k_taps.load(args.qk_conv, qk_history, qk_width, k_channel, args.taps);
  }
  if (thread < V) norm_weight = args.norm_weight[thread];
  if (own < values_per_head) load_value_head(first_head);
  wait_for_kernels_ahead();

  // The activations of a value head.
  float v_newest = 0;
  float a = 0;
  float b = 0;
  float z = 0;
  const auto load_activations = [&](int value_head) {
    const int64_t channel = value_head * V + thread;
    if (thread < V) v_newest = to_float(args.v[sequence * args.v_stride + channel]);
    b = to_float(args.b[sequence * args.b_stride + value_head]);
    if constexpr (!kLowRank) {
      if (thread < K) {
        const int at = value_head * args.gate_width + (args.gate_width == 1 ? 0 : thread);
        a = to_float(args.a[sequence * args.a_stride + at]);
      }
      if (thread < V && args.z != nullptr) z = to_float(args.z[sequence * args.z_stride + channel]);
    }
  };
  if (own < values_per_head) load_activations(first_head);
  float q = 0;
  float k = 0;
  if (has_qk) {
    const T* qk = args.qk + sequence * args.qk_stride;
    q = q_taps.step<T>(to_float(qk[q_channel]), qk_history, qk_width, q_channel, args.taps);
    k = k_taps.step<T>(to_float(qk[k_channel]), qk_history, qk_width, k_channel, args.taps);
  }
  if constexpr (kLowRank) {
    if (own == 0 && thread < V) {
      s.a_low[thread] = to_float(args.a_low[sequence * args.a_low_stride + thread]);
      s.z_low[thread] = to_float(args.z_low[sequence * args.z_low_stride + thread]);
    }
  }
  float q_k = 0;
  {
    float sums[3] = {q * q, k * k, q * k};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      sums[i] = sum_over_lanes<kWarpSize>(sums[i]);
      if (lane_id() == 0) s.sums[i][warp_id()] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      sums[i] = 0;
#pragma unroll
      for (int warp = 0; warp < kBlock / kWarpSize; ++warp) sums[i] += s.sums[i][warp];
    }
    const float q_inverse = rsqrtf(sums[0] + args.l2_eps);
    const float k_inverse = rsqrtf(sums[1] + args.l2_eps);
    q_k = sums[2] * q_inverse * k_inverse;
    if (has_qk) {
      s.q[thread] = q * q_inverse;
      s.k[thread] = k * k_inverse;
    }
  }

  // All threads go through all turns, for the barriers.
  for (int turn = 0; turn < values_per_head; turn += kHeads) {
    const int value_head = first_head + turn;
    const bool is_there = turn + own < values_per_head;
    if (turn > 0 && is_there) load_activations(value_head);
    if (is_there && thread < V) {
      h.v[thread] =
          v_taps.step<T>(v_newest, v_history, v_width, value_head * V + thread, args.taps);
    }
    if constexpr (kLowRank) {
      for (int j = thread; is_there && j < K + V; j += kThreads) {
        if constexpr (!kHoldsRow) low_row.load(low_weight(value_head, j));
        if (j < K) {
          a = low_row.output(s.a_low, 0.0F);  // of this thread: K <= kThreads
        } else {
          if constexpr (!kHoldsRow) low_bias = args.z_bias[int64_t{value_head} * V + j - K];
          h.z[j - K] = low_row.output(s.z_low, low_bias);
        }
      }
    }
    if (is_there && thread < K) {
      const float x = a + dt_bias;
      const float softplus = fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
      h.decay[thread] =
          expf(args.form == DecayForm::kSoftplus ? -expf(rate) * softplus
                                                 : args.bound * sigmoid<float>(expf(rate) * x));
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
        state[r][e] *= h.decay[row];
        by_k[e] += s.k[row] * state[r][e];
        by_q[e] += s.q[row] * state[r][e];
      }
    }
    store_values(&h.by_k[group][column], by_k);
    store_values(&h.by_q[group][column], by_q);
    __syncthreads();
    const float beta = args.beta_scale * sigmoid<float>(b);
    // Thread c owns column c of the output.
    float o = 0;
    if (is_there && thread < V) {
      float sum_k = 0;
      float sum_q = 0;
#pragma unroll
      for (int other = 0; other < S::kGroups; ++other) {
        sum_k += h.by_k[other][thread];
        sum_q += h.by_q[other][thread];
      }
      o = args.scale * (sum_q + q_k * beta * (h.v[thread] - sum_k));
    }
    const float squares = sum_over_lanes<kWarpSize>(o * o);
    if (lane_id() == 0) h.sums[warp_id() % (kThreads / kWarpSize)] = squares;
    float d[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      float sum_k = 0;
#pragma unroll
      for (int other = 0; other < S::kGroups; ++other) sum_k += h.by_k[other][column + e];
      d[e] = beta * (h.v[column + e] - sum_k);
    }
    __syncthreads();
    if (is_there && thread < V) {
      float total = h.sums[0];
#pragma unroll
      for (int warp = 1; warp < kThreads / kWarpSize; ++warp) total += h.sums[warp];
      float y = o * rsqrtf(total * (1.0F / V) + args.norm_eps) * norm_weight;
      if (kLowRank) z = h.z[thread];
      if (kLowRank || args.z != nullptr)
        y *= args.activation == GateActivation::kSilu ? z * sigmoid<T>(z) : sigmoid<T>(z);
      args.y[sequence * v_width + value_head * V + thread] = from_float<T>(y);
    }
    if (is_there) {
#pragma unroll
      for (int r = 0; r < S::kRows; ++r) {
        const int row = group + r * S::kGroups;
        if (row >= K) continue;
#pragma unroll
        for (int e = 0; e < kVector; ++e) state[r][e] += s.k[row] * d[e];
        store_values(state_of_head(value_head) + row * V, state[r]);
      }
    }
    if (turn + kHeads + own < values_per_head) load_value_head(value_head + kHeads);
    if (turn + kHeads < values_per_head) __syncthreads();  // shared memory is written again
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
  in.a_stride = args.a_SGK.defined() ? args.a_SGK.stride(0) : 0;
  in.a_low = pointer<const T>(args.a_low_SP);
  in.a_weight = pointer<const T>(args.a_weight_XP);
  in.z_low = pointer<const T>(args.z_low_SP);
  in.z_weight = pointer<const T>(args.z_weight_XP);
  in.z_bias = pointer<const float>(args.z_bias_X);
  in.a_low_stride = args.a_low_SP.defined() ? args.a_low_SP.stride(0) : 0;
  in.z_low_stride = args.z_low_SP.defined() ? args.z_low_SP.stride(0) : 0;
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
  in.blocks = narrow<unsigned>(args.state_SGKV.size(0) * args.qk_SX.size(1) / (2 * K));
  in.H = narrow<int>(args.qk_SX.size(1) / (2 * K));
  in.G = narrow<int>(args.state_SGKV.size(1));
  in.taps = narrow<int>(args.qk_conv_XW.size(1));
  in.gate_width = narrow<int>(args.dt_bias_GK.size(1));
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
  const int64_t K = args.state_SGKV.size(2);
  const int64_t V = args.state_SGKV.size(3);
  if (args.state_SGKV.size(0) == 0) return;
  if (args.a_low_SP.defined() &&
      (args.a_low_SP.size(1) != V || !all_aligned(args.a_weight_XP, args.z_weight_XP))) {
    throw UnsupportedError(error_text("delta_step", "a_low_SP",
                                      "pairs of rank " + std::to_string(V) + " on cuda",
                                      describe(args.a_low_SP)));
  }
  with_activation_type("delta_step", args.qk_SX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const StepInputs<T> in = inputs_of<T>(args);
    const auto start = [&]<int kK, int kV, int kHeads, bool kLowRank>() {
      const auto kernel = delta_step_kernel<T, kK, kV, kHeads, kLowRank>;
      prefer_shared_memory(kernel);
      // One block on every multiprocessor, as linear_step.cu says.
      const int64_t grid = std::max<int64_t>(in.blocks, device.num_multiprocessors());
      launch_early(device, "delta_step_kernel", kernel, grid, kHeads * kThreads,
                   sizeof(StepShared<kK, kV, kHeads>), in);
    };
    const auto run = [&]<int kK, int kV>() {
      if (in.a_low != nullptr) return start.template operator()<kK, kV, 1, true>();
      // Two value heads side by side where each query head has several.
      if constexpr (sizeof(T) == 2) {
        if (in.G > in.H) return start.template operator()<kK, kV, 2, false>();
      }
      start.template operator()<kK, kV, 1, false>();
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
