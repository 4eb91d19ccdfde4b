// Log-probabilities of tokens: a pass over each row for its log-sum-exp, one for the first of the most likely tokens,
// then the tokens asked for.
#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

// Of a row. The maximum and the logarithm stay apart: their sum would round at the size of the logits.
struct RowSums {
  float maximum;
  float log_sum;
  int first;  // of the most likely
};

template <bool kRounds>
__device__ __forceinline__ float rounded(float x) {
  return kRounds ? to_float(from_float<__nv_bfloat16>(x)) : x;
}

template <bool kRounds>
__device__ __forceinline__ float log_probability(float logit, const RowSums& row) {
  return rounded<kRounds>((logit - row.maximum) - row.log_sum);
}

// Grid: one block per row. Bytes: the row, the second time out of a cache.
template <class T, int kVector, bool kRounds>
__global__ void __launch_bounds__(kThreads)
    token_scores_rows_kernel(const T* logits, RowSums* sums, int N) {
  __shared__ float s_maximum[kWarps];
  __shared__ float s_sum[kWarps];
  __shared__ int s_first[kWarps];
  const T* const row = logits + static_cast<int64_t>(blockIdx.x) * N;
  const int num_vectors = N / kVector;
  float maximum = -3.0e38F;
  float sum = 0;
  bool has_nan = false;
  for (int i = static_cast<int>(threadIdx.x); i < num_vectors; i += kThreads) {
    float x[kVector];
    load_values(row + i * kVector, x);
    float larger = maximum;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      x[e] = rounded<kRounds>(x[e]);
      has_nan = has_nan || isnan(x[e]);
      larger = fmaxf(larger, x[e]);
    }
    sum *= exponential<T>(maximum - larger);
    maximum = larger;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum += exponential<T>(x[e] - maximum);
  }
  // fmaxf leaves NaN out.
  if (has_nan) sum = NAN;
  const float warp_maximum = max_over_lanes<kWarpSize>(maximum);
  sum = sum_over_lanes<kWarpSize>(sum * exponential<T>(maximum - warp_maximum));
  if (lane_id() == 0) {
    s_maximum[warp_id()] = warp_maximum;
    s_sum[warp_id()] = sum;
  }
  __syncthreads();
  maximum = s_maximum[0];
  for (int warp = 1; warp < kWarps; ++warp) maximum = fmaxf(maximum, s_maximum[warp]);
  sum = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    sum += s_sum[warp] * exponential<T>(s_maximum[warp] - maximum);
  const RowSums result = {maximum, logf(sum), 0};
  const float best = log_probability<kRounds>(maximum, result);

  int first = N;
  for (int i = static_cast<int>(threadIdx.x); i < num_vectors && first == N; i += kThreads) {
    float x[kVector];
    load_values(row + i * kVector, x);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (first == N && log_probability<kRounds>(rounded<kRounds>(x[e]), result) == best)
        first = i * kVector + e;
    }
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    first = min(first, __shfl_xor_sync(kAllLanes, first, distance, kWarpSize));
  if (lane_id() == 0) s_first[warp_id()] = first;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 0; warp < kWarps; ++warp) first = min(first, s_first[warp]);
  sums[blockIdx.x] = {result.maximum, result.log_sum, first};
}

// Grid: one thread per token.
template <class T, bool kRounds>
__global__ void __launch_bounds__(kThreads)
    token_scores_tokens_kernel(const T* logits, const RowSums* sums, const int32_t* rows,
                               const int32_t* ids, float* log_probabilities, int32_t* is_greedy,
                               int64_t num_tokens, int64_t N) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= num_tokens) return;
  const RowSums row = sums[rows[t]];
  const bool is_number = isfinite(row.maximum + row.log_sum);
  const float logit = rounded<kRounds>(to_float(logits[rows[t] * N + ids[t]]));
  log_probabilities[t] = is_number ? log_probability<kRounds>(logit, row) : NAN;
  is_greedy[t] = is_number && row.first == ids[t] ? 1 : 0;
}

}  // namespace

void token_scores(const Context& context, const ops::TokenScores& args) {
  const int64_t R = args.logits_RN.size(0);
  const int64_t N = args.logits_RN.size(1);
  const int64_t num_tokens = args.rows_T.size(0);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor scratch =
      context.arena->scratch(DType::kU8, {R * static_cast<int64_t>(sizeof(RowSums))});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  auto* const sums = reinterpret_cast<RowSums*>(scratch.raw());
  with_activation_type("token_scores", args.logits_RN.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const bool vectors = N % kFull == 0 && is_aligned(args.logits_RN, 16);
    const auto run = [&]<bool kRounds>() {
      launch(device, "token_scores_rows_kernel",
             vectors ? token_scores_rows_kernel<T, kFull, kRounds>
                     : token_scores_rows_kernel<T, 1, kRounds>,
             R, kThreads, 0, pointer<const T>(args.logits_RN), sums, narrow<int>(N));
      launch(device, "token_scores_tokens_kernel", token_scores_tokens_kernel<T, kRounds>,
             divide_up(num_tokens, kThreads), kThreads, 0, pointer<const T>(args.logits_RN),
             static_cast<const RowSums*>(sums), pointer<const int32_t>(args.rows_T),
             pointer<const int32_t>(args.ids_T), pointer<float>(args.log_probability_T),
             pointer<int32_t>(args.is_greedy_T), num_tokens, N);
    };
    if (args.rounding == ops::TokenScores::Rounding::kBf16) {
      run.template operator()<true>();
    } else {
      run.template operator()<false>();
    }
  });
}

}  // namespace deltatrain::backend::cuda
