// Softmax cross-entropy: the plain form, one block per row, which reads the row twice. Devices with
// clusters take hopper/cross_entropy_cluster.cu where the shapes allow it.
#include "backend/cuda/activations.cuh"
#include "backend/cuda/hopper/hopper_kernels.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

// Grid: one block per row. Bytes per element: 2 reads and 1 write.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_plain_kernel(T* logits, const int32_t* labels, float* loss, float* lse, int64_t N,
                               float grad_scale, bool write_gradient) {
  __shared__ float s_maximum[kWarps];
  __shared__ float s_sum[kWarps];
  const int64_t row = blockIdx.x;
  T* const row_logits = logits + row * N;
  const int32_t label = labels[row];
  const bool ignored = label == ops::kIgnoredLabel;
  const float label_logit = ignored ? 0.0F : to_float(row_logits[label]);
  const int64_t num_vectors = N / kVector;

  float maximum = -3.0e38F;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < num_vectors; i += kThreads) {
    float x[kVector];
    load_values(row_logits + i * kVector, x);
    float larger = maximum;
#pragma unroll
    for (int e = 0; e < kVector; ++e) larger = fmaxf(larger, x[e]);
    sum *= exponential<T>(maximum - larger);
    maximum = larger;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum += exponential<T>(x[e] - maximum);
  }
  const float warp_maximum = max_over_lanes<kWarpSize>(maximum);
  sum = sum_over_lanes<kWarpSize>(sum * exponential<T>(maximum - warp_maximum));
  if (lane_id() == 0) {
    s_maximum[warp_id()] = warp_maximum;
    s_sum[warp_id()] = sum;
  }
  // Also ends the reading of the label's logit by every thread before any gradient is written.
  __syncthreads();
  maximum = s_maximum[0];
  for (int warp = 1; warp < kWarps; ++warp) maximum = fmaxf(maximum, s_maximum[warp]);
  sum = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    sum += s_sum[warp] * exponential<T>(s_maximum[warp] - maximum);
  // The maximum and the sum stay apart: their logarithms' sum would round at the size of the
  // logits.
  const float log_sum = logf(sum);
  if (threadIdx.x == 0) {
    loss[row] = ignored ? 0.0F : (maximum - label_logit) + log_sum;
    if (lse != nullptr) lse[row] = maximum + log_sum;
  }
  if (!write_gradient) return;

  const float inv_sum = 1.0F / sum;
  for (int64_t i = threadIdx.x; i < num_vectors; i += kThreads) {
    float x[kVector];
    load_values(row_logits + i * kVector, x);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float one_hot = i * kVector + e == label ? 1.0F : 0.0F;
      x[e] = ignored ? 0.0F : (exponential<T>(x[e] - maximum) * inv_sum - one_hot) * grad_scale;
    }
    store_values<Reuse::kStreaming>(row_logits + i * kVector, x);
  }
}

}  // namespace

void cross_entropy(const Context& context, const ops::CrossEntropy& args) {
  CudaDevice& device = cuda_device(context);
  if (cross_entropy_cluster(device, args)) return;
  const int64_t N = args.logits_RN.size(1);
  with_activation_type("cross_entropy", args.logits_RN.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const bool vectors = N % kFull == 0 && is_aligned(args.logits_RN, 16);
    launch(device, "cross_entropy_plain_kernel",
           vectors ? cross_entropy_plain_kernel<T, kFull> : cross_entropy_plain_kernel<T, 1>,
           args.logits_RN.size(0), kThreads, 0, pointer<T>(args.logits_RN),
           pointer<const int32_t>(args.labels_R), pointer<float>(args.loss_R),
           pointer<float>(args.lse_R), N, static_cast<float>(args.grad_scale),
           args.gradient == ops::CrossEntropy::Gradient::kWrite);
  });
}

}  // namespace deltatrain::backend::cuda
