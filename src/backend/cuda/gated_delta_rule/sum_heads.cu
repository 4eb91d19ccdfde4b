// dq and dk of grouped heads: the sum over the value heads that share a q/k head, in order.
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kThreads = 256;

// Grid: one thread per element of dq [R, H, K].
template <class T>
__global__ void __launch_bounds__(kThreads)
    gated_delta_rule_backward_sum_heads_kernel(const float* dq_of_head, const float* dk_of_head,
                                               T* dq, T* dk, int64_t count, int64_t K,
                                               int64_t group) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t from = i / K * group * K + i % K;
  float sum_q = 0;
  float sum_k = 0;
  for (int64_t member = 0; member < group; ++member) {
    sum_q += dq_of_head[from + member * K];
    sum_k += dk_of_head[from + member * K];
  }
  dq[i] = from_float<T>(sum_q);
  dk[i] = from_float<T>(sum_k);
}

template <class T>
void run(CudaDevice& device, const HeadSums& sums, T* dq, T* dk) {
  const int64_t count = sums.R * sums.H * sums.K;
  launch(device, "gated_delta_rule_backward_sum_heads_kernel",
         gated_delta_rule_backward_sum_heads_kernel<T>, divide_up(count, kThreads), kThreads, 0,
         sums.dq_of_head, sums.dk_of_head, dq, dk, count, sums.K, sums.G / sums.H);
}

}  // namespace

void sum_heads(CudaDevice& device, const HeadSums& sums, Bf16* dq, Bf16* dk) {
  run(device, sums, dq, dk);
}
void sum_heads(CudaDevice& device, const HeadSums& sums, float* dq, float* dk) {
  run(device, sums, dq, dk);
}

}  // namespace deltatrain::backend::cuda::delta
