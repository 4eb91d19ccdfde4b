#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/hopper/hopper_kernels.h"
#include "backend/cuda/hopper/ptx_wrappers.cuh"
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
constexpr int kStages = 3;      // stretches of rows in shared memory, 64 KiB each
constexpr int kMaxCluster = 8;  // the largest that every device with clusters can run
constexpr int64_t kBlockColumns = int64_t{kThreads} * kVector * kHeld;
constexpr float kLog2e = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// The maximum of some values in units of log2, and the sum of 2^(value - maximum).
struct ExpSum {
  float maximum;
  float sum;
};

// Of a block, beside the stages.
struct StaticShared {
  ExpSum parts[2][kMaxCluster * kWarps];
  uint64_t arrived[kStages];
};

// Grid: as many clusters as run at once, each taking rows in turn; each block of a cluster owns a
// stretch of their columns. The next rows are on their way to shared memory (kStages stretches)
// while one is in registers. Bytes per element: 2 in, 2 out.
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_cluster_kernel(Bf16* logits, const int32_t* labels, float* loss, float* lse,
                                 int64_t R, int64_t N, int vectors_per_block, float grad_scale,
                                 bool write_gradient) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  __shared__ StaticShared s;
  auto& s_parts = s.parts;
  auto& s_arrived = s.arrived;
  Bf16* const s_stages = dynamic_shared<Bf16>();
  const int stage_elements = vectors_per_block * kVector;

  const int cluster_size = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t num_clusters = gridDim.x / cluster_size;
  const int64_t first_row = blockIdx.x / cluster_size;
  const int first_vector = rank * vectors_per_block;
  const int num_vectors = min(vectors_per_block, static_cast<int>(N / kVector) - first_vector);
  Bf16* const stretch = logits + int64_t{first_vector} * kVector;

  const auto fetch = [&](int64_t row, int stage) {
    hopper::copy_bulk(s_stages + stage * stage_elements, stretch + row * N,
                      static_cast<uint32_t>(num_vectors) * kVector * sizeof(Bf16),
                      &s_arrived[stage]);
  };
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : s_arrived) hopper::init_copy_barrier(&barrier);
    hopper::publish_barriers();
    for (int stage = 0; stage < kStages; ++stage) {
      const int64_t row = first_row + stage * num_clusters;
      if (row < R) fetch(row, stage);
    }
  }
  // Every block has started, and its barriers are ready.
  cluster.sync();

  const int lane = lane_id();
  int stage = 0;
  uint32_t parity = 0;
  int turn = 0;
#pragma unroll 1
  for (int64_t row = first_row; row < R; row += num_clusters) {
    const int32_t label = labels[row];
    const bool ignored = label == ops::kIgnoredLabel;
    const int own_label =
        ignored ? -1 : label - first_vector * kVector;  // within the stretch, or not
    const Bf16* const s_logits = s_stages + stage * stage_elements;
    hopper::wait_copy(&s_arrived[stage], parity);

    Pack<Bf16, kVector> in[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads;
      // Negative infinity in bf16: adds nothing to any sum.
#pragma unroll
      for (uint32_t& word : in[j].words) word = 0xff80ff80U;
      if (i < num_vectors) in[j] = load_pack<Bf16, kVector>(s_logits + i * kVector);
    }
    const bool owns_loss =
        ignored ? rank == 0 : own_label >= 0 && own_label < num_vectors * kVector;
    float label_logit = 0;
    if (owns_loss && !ignored && threadIdx.x == 0)
      label_logit = __bfloat162float(s_logits[own_label]);

    ExpSum mine{-1.0e38F, 0};  // stays finite in units of log2
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      float x[kVector];
      in[j].unpack(x);
#pragma unroll
      for (int e = 0; e < kVector; ++e) mine.maximum = fmaxf(mine.maximum, x[e]);
    }
    mine.maximum = max_over_lanes<kWarpSize>(mine.maximum) * kLog2e;
    float exponentials[kHeld][kVector];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      float x[kVector];
      in[j].unpack(x);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        exponentials[j][e] = exp2_approximate(fmaf(x[e], kLog2e, -mine.maximum));
        mine.sum += exponentials[j][e];
      }
    }
    mine.sum = sum_over_lanes<kWarpSize>(mine.sum);
    if (lane < cluster_size) {
      ExpSum* const theirs = cluster.map_shared_rank(s_parts[turn], static_cast<unsigned>(lane));
      theirs[rank * kWarps + warp_id()] = mine;
    }
    cluster.sync();
    // Every thread of the block has read its stage.
    if (threadIdx.x == 0 && row + kStages * num_clusters < R)
      fetch(row + kStages * num_clusters, stage);

    // Every warp adds up all parts, in the same order.
    const ExpSum* const parts = s_parts[turn];
    const int num_parts = cluster_size * kWarps;
    float maximum = -3.0e38F;
#pragma unroll 1
    for (int part = lane; part < num_parts; part += kWarpSize)
      maximum = fmaxf(maximum, parts[part].maximum);
    maximum = max_over_lanes<kWarpSize>(maximum);
    float sum = 0;
#pragma unroll 1
    for (int part = lane; part < num_parts; part += kWarpSize) {
      sum += parts[part].sum * exp2_approximate(parts[part].maximum - maximum);
    }
    sum = sum_over_lanes<kWarpSize>(sum);
    const float lse_log2 = maximum + log2f(sum);
    if (owns_loss && threadIdx.x == 0) {
      const float lse_natural = lse_log2 * kLn2;
      loss[row] = ignored ? 0.0F : lse_natural - label_logit;
      if (lse != nullptr) lse[row] = lse_natural;
    }
    if (write_gradient) {
      const float factor = exp2_approximate(mine.maximum - lse_log2) * grad_scale;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int i = static_cast<int>(threadIdx.x) + j * kThreads;
        if (i >= num_vectors) continue;
        float x[kVector];
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          // Zeros also where a row that counts for nothing holds numbers that are not finite.
          x[e] = ignored ? 0.0F : exponentials[j][e] * factor;
        }
        if (own_label >= 0 && i == own_label / kVector) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) x[e] -= e == own_label % kVector ? grad_scale : 0.0F;
        }
        store_values<Reuse::kStreaming>(stretch + row * N + i * kVector, x);
      }
    }
    turn ^= 1;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
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
  const int64_t vectors_per_block = divide_up(N / kVector, cluster_size);
  const auto shared_bytes =
      static_cast<size_t>(kStages * vectors_per_block * kVector) * sizeof(Bf16);
  allow_shared_bytes(cross_entropy_cluster_kernel, shared_bytes, sizeof(StaticShared));

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster_size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = device.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  int num_clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&num_clusters, cross_entropy_cluster_kernel, &config),
             "cudaOccupancyMaxActiveClusters");
  if (num_clusters < 1) return false;
  config.gridDim.x *= static_cast<unsigned>(std::min<int64_t>(R, num_clusters));
  check_cuda(
      cudaLaunchKernelEx(&config, cross_entropy_cluster_kernel, pointer<Bf16>(args.logits_RN),
                         pointer<const int32_t>(args.labels_R), pointer<float>(args.loss_R),
                         pointer<float>(args.lse_R), R, N, static_cast<int>(vectors_per_block),
                         static_cast<float>(args.grad_scale),
                         args.gradient == ops::CrossEntropy::Gradient::kWrite),
      "cudaLaunchKernelEx");
  device.check_launch("cross_entropy_cluster_kernel");
  return true;
}

}  // namespace deltatrain::backend::cuda
