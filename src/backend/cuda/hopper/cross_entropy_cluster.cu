#include <cooperative_groups.h>

#include "backend/cuda/hopper/hopper_kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kVector = 8;
constexpr int kHeld = 8;        // vectors of a thread
constexpr int kMaxCluster = 8;  // the largest that every device with clusters can run
constexpr int64_t kBlockColumns = int64_t{kThreads} * kVector * kHeld;
constexpr float kLog2e = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// The maximum of some values in units of log2, and the sum of 2^(value - maximum).
struct ExpSum {
  float maximum;
  float sum;
};

// Grid: one cluster per row; each block of a cluster owns a stretch of its columns, 64 KiB in
// registers. Bytes per element: 2 in, 2 out.
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_cluster_kernel(Bf16* logits, const int32_t* labels, float* loss, float* lse,
                                 int64_t N, int vectors_per_block, float grad_scale,
                                 bool write_gradient) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  // Other blocks' shared memory may be touched once all have started: told here, waited for after
  // the loads.
  auto started = cluster.barrier_arrive();
  __shared__ ExpSum s_parts[kMaxCluster * kWarps];

  const int cluster_size = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t row = blockIdx.x / cluster_size;
  const int32_t label = labels[row];
  const bool ignored = label == ops::kIgnoredLabel;
  Bf16* const row_logits = logits + row * N;
  const int first = rank * vectors_per_block + static_cast<int>(threadIdx.x);
  const int num_vectors = static_cast<int>(N / kVector);
  const int end = min((rank + 1) * vectors_per_block, num_vectors);

  Pack<Bf16, kVector> in[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = first + j * kThreads;
    // Negative infinity in bf16: adds nothing to any sum.
#pragma unroll
    for (uint32_t& word : in[j].words) word = 0xff80ff80U;
    if (i < end)
      in[j] = load_pack<Bf16, kVector, Reuse::kStreaming>(row_logits +
                                                          static_cast<int64_t>(i) * kVector);
  }
  // The label's logit, before any block of the cluster writes gradients.
  float label_logit = 0;
  if (rank == 0 && threadIdx.x == 0 && !ignored) label_logit = __bfloat162float(row_logits[label]);

  ExpSum mine{-1.0e38F, 0};  // stays finite in units of log2
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    float x[kVector];
    in[j].unpack(x);
#pragma unroll
    for (int e = 0; e < kVector; ++e) mine.maximum = fmaxf(mine.maximum, x[e]);
  }
  mine.maximum = max_over_lanes<kWarpSize>(mine.maximum) * kLog2e;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    float x[kVector];
    in[j].unpack(x);
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      mine.sum += exp2_approximate(fmaf(x[e], kLog2e, -mine.maximum));
  }
  mine.sum = sum_over_lanes<kWarpSize>(mine.sum);

  cluster.barrier_wait(std::move(started));
  const int lane = lane_id();
  if (lane < cluster_size) {
    ExpSum* const theirs = cluster.map_shared_rank(s_parts, static_cast<unsigned>(lane));
    theirs[rank * kWarps + warp_id()] = mine;
  }
  cluster.sync();

  // Every warp adds up all parts, in the same order.
  const int num_parts = cluster_size * kWarps;
  float maximum = -3.0e38F;
#pragma unroll 1
  for (int part = lane; part < num_parts; part += kWarpSize)
    maximum = fmaxf(maximum, s_parts[part].maximum);
  maximum = max_over_lanes<kWarpSize>(maximum);
  float sum = 0;
#pragma unroll 1
  for (int part = lane; part < num_parts; part += kWarpSize) {
    sum += s_parts[part].sum * exp2_approximate(s_parts[part].maximum - maximum);
  }
  sum = sum_over_lanes<kWarpSize>(sum);
  const float lse_log2 = maximum + log2f(sum);
  if (rank == 0 && threadIdx.x == 0) {
    const float lse_natural = lse_log2 * kLn2;
    loss[row] = ignored ? 0.0F : lse_natural - label_logit;
    if (lse != nullptr) lse[row] = lse_natural;
  }
  if (!write_gradient) return;

  if (ignored) {
    // Zeros also where a row that counts for nothing holds numbers that are not finite.
    Pack<Bf16, kVector> zeros;
    zeros.set_zero();
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kThreads;
      if (i < end)
        store_pack<Reuse::kStreaming>(row_logits + static_cast<int64_t>(i) * kVector, zeros);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = first + j * kThreads;
    if (i >= end) continue;
    float x[kVector];
    in[j].unpack(x);
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      x[e] = exp2_approximate(fmaf(x[e], kLog2e, -lse_log2)) * grad_scale;
    if (i == label / kVector) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) x[e] -= e == label % kVector ? grad_scale : 0.0F;
    }
    store_values<Reuse::kStreaming>(row_logits + static_cast<int64_t>(i) * kVector, x);
  }
#endif
}

}  // namespace

bool cross_entropy_cluster(CudaDevice& device, const ops::CrossEntropy& args) {
  const int64_t R = args.logits_RN.size(0);
  const int64_t N = args.logits_RN.size(1);
  if (device.compute_capability() < 90 || args.logits_RN.dtype() != DType::kBF16 ||
      N % kVector != 0 || N > kMaxCluster * kBlockColumns || !is_aligned(args.logits_RN, 16) ||
      R > INT_MAX / kMaxCluster) {
    return false;
  }
  if (R == 0) return true;
  int cluster_size = 1;
  while (cluster_size * kBlockColumns < N) cluster_size *= 2;

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(R * cluster_size));
  config.blockDim = dim3(kThreads);
  config.stream = device.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(
      cudaLaunchKernelEx(&config, cross_entropy_cluster_kernel, pointer<Bf16>(args.logits_RN),
                         pointer<const int32_t>(args.labels_R), pointer<float>(args.loss_R),
                         pointer<float>(args.lse_R), N,
                         static_cast<int>(divide_up(N / kVector, cluster_size)),
                         static_cast<float>(args.grad_scale),
                         args.gradient == ops::CrossEntropy::Gradient::kWrite),
      "cudaLaunchKernelEx");
  device.check_launch("cross_entropy_cluster_kernel");
  return true;
}

}  // namespace deltatrain::backend::cuda
