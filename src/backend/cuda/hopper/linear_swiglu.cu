// SwiGLU in the products beside it: gate and up of the forward product and the gradients of backward's pass through
// memory once. product_tiles.cuh has the products.
#include <algorithm>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/gemm_library.h"
#include "backend/cuda/hopper/hopper_kernels.h"
#include "backend/cuda/hopper/product_tiles.cuh"
#include "backend/cuda/hopper/tensor_map.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda {

namespace hopper::product {
namespace {

struct Arguments {
  const Bf16* gate_up;  // backward
  Bf16* out;            // gate_up or its gradient
  Bf16* y;              // forward
  int R;
  int F;
  Tiling tiling;
};

#if DELTATRAIN_HAS_GROUP_PRODUCTS

// One finisher's part of forward tiles: 128 columns of the gate, then the same ones of up.
struct ForwardFinisher {
  __device__ __forceinline__ static void run(const Shared& s, const Arguments& args, int finisher) {
    constexpr int kHalfChunks = kRowChunks / 2;
    constexpr int kRowsAtOnce = kWarpSize / kHalfChunks;
    const int64_t F = args.F;
    const int lane = lane_id();
    const int chunk = lane % kHalfChunks;
    Walk walk;
#pragma unroll 1
    while (walk.has_tile(args.tiling)) {
      const Place place = walk.place(args.tiling);
      walk.advance();
      const int end = min(kTileRows, args.R - place.row);
      const int column = (place.column * kHalfChunks + chunk) * kChunk;
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        const int group_end = min((group + 1) * kGroupRows, end);
        wait_full(group);
#pragma unroll 4
        for (int row = group * kGroupRows + finisher * kRowsAtOnce + lane / kHalfChunks;
             row < group_end; row += kFinishers * kRowsAtOnce) {
          const Pack<Bf16, kChunk> gate = staged_chunk(s, row, chunk);
          const Pack<Bf16, kChunk> up = staged_chunk(s, row, chunk + kHalfChunks);
          const int64_t offset = (place.row + row) * F;
          Bf16* const to = args.out + 2 * offset + column;
          store_pack<Reuse::kStreaming>(to, gate);
          store_pack<Reuse::kStreaming>(to + F, up);
          float g[kChunk];
          float u[kChunk];
          gate.unpack(g);
          up.unpack(u);
#pragma unroll
          for (int e = 0; e < kChunk; ++e) g[e] = swiglu<Bf16>(g[e], u[e]);
          store_values<Reuse::kStreaming>(args.y + offset + column, g);
        }
        sync_warp();  // with an odd number of rows half of it ends one earlier, and barriers take it whole
        if (walk.has_tile(args.tiling)) give_free(group);
      }
    }
  }
};

// One finisher's rows of backward tiles, every third, in batches: gate and up of the next batch are on their way while
// one is being computed.
class BackwardFinisher {
 public:
  __device__ __forceinline__ BackwardFinisher(const Shared& s, const Arguments& args, int finisher)
      : s_(s), args_(args), finisher_(finisher) {}

  __device__ __forceinline__ void run() {
    Walk walk;
    if (!walk.has_tile(args_.tiling)) return;
    Place place = walk.place(args_.tiling);
    GateUp even[kBatch];
    GateUp odd[kBatch];
    load(even, place, 0);
    bool is_last = false;
#pragma unroll 1
    while (!is_last) {
      walk.advance();
      is_last = !walk.has_tile(args_.tiling);
      const Place next = is_last ? place : walk.place(args_.tiling);
      wait_full(0);
#pragma unroll 1
      for (int batch = 0; batch < kBatches; batch += 2) {
        load(odd, place, batch + 1);
        finish(even, place, batch, is_last);
        const bool is_end = batch + 2 == kBatches;
        load(even, is_end ? next : place, is_end ? 0 : batch + 2);
        finish(odd, place, batch + 1, is_last);
      }
      if (!is_last) give_free(1);
      place = next;
    }
  }

 private:
  static_assert(kGroups == 2);
  static constexpr int kBatch = 6;
  static constexpr int kRows = (kTileRows + kFinishers - 1) / kFinishers;
  static constexpr int kBatches = (kRows + 2 * kBatch - 1) / (2 * kBatch) * 2;
  static constexpr int kMixedBatch = kGroupRows / kFinishers / kBatch;  // rows of both groups

  struct GateUp {
    Pack<Bf16, kChunk> gate;
    Pack<Bf16, kChunk> up;
  };

  __device__ __forceinline__ int first_row(int batch) const {
    return batch * kBatch * kFinishers + finisher_;
  }
  __device__ __forceinline__ int64_t offset(const Place& place, int row) const {
    return (place.row + row) * 2 * int64_t{args_.F} + place.column * kTileColumns +
           lane_id() * kChunk;
  }

  // Batches go on past the last row.
  __device__ __forceinline__ Pack<Bf16, kChunk> staged(int row) const {
    return staged_chunk(s_, min(row, kTileRows - 1), lane_id());
  }

  __device__ __forceinline__ void load(GateUp (&in)[kBatch], const Place& place, int batch) const {
    const int first = first_row(batch);
    const int end = min(kTileRows, args_.R - place.row);
    const Bf16* gate = args_.gate_up + offset(place, first);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kFinishers < end) {
        in[i].gate = load_pack<Bf16, kChunk, Reuse::kStreaming>(gate);
        in[i].up = load_pack<Bf16, kChunk, Reuse::kStreaming>(gate + args_.F);
      }
      gate += kFinishers * 2 * int64_t{args_.F};
    }
  }

  __device__ __forceinline__ void finish(const GateUp (&in)[kBatch], const Place& place, int batch,
                                         bool is_last) const {
    if (batch == kMixedBatch) wait_full(1);
    const int first = first_row(batch);
    const int end = min(kTileRows, args_.R - place.row);
    Bf16* gate = args_.out + offset(place, first);
    Pack<Bf16, kChunk> next = staged(first);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + i * kFinishers;
      float dy[kChunk];
      next.unpack(dy);
      if (i + 1 < kBatch) next = staged(row + kFinishers);
      float g[kChunk];
      float u[kChunk];
      in[i].gate.unpack(g);
      in[i].up.unpack(u);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        const SwigluGradient gradient = swiglu_gradient<Bf16>(dy[e], g[e], u[e]);
        g[e] = gradient.gate;
        u[e] = gradient.up;
      }
      GateUp out;
      out.gate.pack(g);
      out.up.pack(u);
      // Computed whether stored or not: without jumps rows overlap.
      settle(out.gate.words);
      settle(out.up.words);
      if (row < end) {
        store_pack<Reuse::kStreaming>(gate, out.gate);
        store_pack<Reuse::kStreaming>(gate + args_.F, out.up);
      }
      gate += kFinishers * 2 * int64_t{args_.F};
    }
    if (batch == kMixedBatch && !is_last) give_free(0);
  }

  const Shared& s_;
  const Arguments& args_;
  int finisher_;
};

#endif  // DELTATRAIN_HAS_GROUP_PRODUCTS

// Grid: clusters of two blocks, as many as run at once. Forward: a is x, b the weight: per tile 128 rows of the gate and
// those of up. Bytes: x, the weight, gate_up and y once.
__global__ void __launch_bounds__(kThreads, 1)
    linear_swiglu_forward_kernel(const __grid_constant__ CUtensorMap a_map,
                                 const __grid_constant__ CUtensorMap b_map, Arguments args) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  Shared& s = aligned_shared();
  begin(s);
  const int group = same_in_warp(warp_id() / kWarpsPerGroup);
  const int warp = same_in_warp(warp_id() % kWarpsPerGroup);
  if (group > 0) {
    multiply<false>(s, args.tiling, group - 1);
  } else if (warp > 0) {
    ForwardFinisher::run(s, args, warp - 1);
  } else if (lane_id() == 0) {
    feed(s, args.tiling, &a_map, [&](Bf16* to, int rank, int column, int step, uint64_t* barrier) {
      copy_box_to_all(to, &b_map, step * kDepth, column * (kTileColumns / 2) + rank * args.F,
                      barrier, kBothBlocks);
    });
  }
  end();
#endif
}

// Grid: as above. a is dz, b the weight that y goes to: 256 of its columns. Bytes: dz, the weight, gate_up and its
// gradient once.
__global__ void __launch_bounds__(kThreads, 1)
    linear_swiglu_backward_kernel(const __grid_constant__ CUtensorMap a_map,
                                  const __grid_constant__ CUtensorMap b_map, Arguments args) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  Shared& s = aligned_shared();
  begin(s);
  const int group = same_in_warp(warp_id() / kWarpsPerGroup);
  const int warp = same_in_warp(warp_id() % kWarpsPerGroup);
  if (group > 0) {
    multiply<true>(s, args.tiling, group - 1);
  } else if (warp > 0) {
    BackwardFinisher(s, args, warp - 1).run();
  } else if (lane_id() == 0) {
    feed(s, args.tiling, &a_map, [&](Bf16* to, int rank, int column, int step, uint64_t* barrier) {
      const int first = column * kTileColumns + rank * (kTileColumns / 2);
      copy_box_to_all(to, &b_map, first, step * kDepth, barrier, kBothBlocks);
      copy_box_to_all(to + kDepth * kDepth, &b_map, first + kDepth, step * kDepth, barrier,
                      kBothBlocks);
    });
  }
  end();
#endif
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Arguments);

// `b_rows`: of a box of b. False, with nothing done, where there are too few tiles to keep the device busy.
bool run(CudaDevice& device, const char* name, Kernel kernel, const Tensor& a, const Tensor& b,
         int b_rows, int num_columns, Arguments args) {
  allow_shared_bytes(kernel, kSharedBytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kCluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = device.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  int num_clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&num_clusters, kernel, &config),
             "cudaOccupancyMaxActiveClusters");
  num_clusters -= device.num_blocks_beside_ops();  // each may hold one of a cluster's places
  Tiling& tiling = args.tiling;
  tiling.num_steps = narrow<int>(a.size(1) / kDepth);
  tiling.num_columns = num_columns;
  tiling.num_pairs = narrow<int>(divide_up(args.R, kCluster * kTileRows));
  // One pair of tiles through all columns meets the weight in the last cache level, where that holds it.
  constexpr int64_t kCachedBytes = int64_t{24} << 20;
  tiling.band = b.size(0) * b.size(1) * dtype_bytes(b.dtype()) <= kCachedBytes ? 1 : 8;
  const int64_t num_tiles = int64_t{tiling.num_pairs} * num_columns;
  if (num_clusters < 1 || num_tiles < num_clusters || num_tiles > INT_MAX / 2) return false;
  config.gridDim.x *= static_cast<unsigned>(num_clusters);
  check_cuda(cudaLaunchKernelEx(&config, kernel, describe_boxes(a, kTileRows),
                                describe_boxes(b, b_rows), args),
             "cudaLaunchKernelEx");
  device.check_launch(name);
  return true;
}

// Whole boxes of depth and columns; rows may be any number. Not where all products are to be the library's alike
// (`uniform_rows`), because few rows are.
bool is_fit(CudaDevice& device, const Tensor& a, int64_t F) {
  return has_group_products(device) && a.dtype() == DType::kBF16 && a.size(1) > 0 &&
         a.size(1) % kDepth == 0 && F > 0 && F % kTileColumns == 0 &&
         a.size(0) <= INT_MAX - kCluster * kTileRows && a.size(1) <= INT_MAX && F <= INT_MAX / 2 &&
         !device.gemm().uniform_rows();
}

}  // namespace
}  // namespace hopper::product

bool linear_swiglu_forward(const Context& context, const ops::LinearSwigluForward& args) {
  namespace product = hopper::product;
  CudaDevice& device = cuda_device(context);
  const int64_t F = args.y_RF.size(1);
  if (!product::is_fit(device, args.x_RD, F) ||
      !all_aligned(args.x_RD, args.weight_XD, args.gate_up_RX, args.y_RF))
    return false;
  product::Arguments arguments{};
  arguments.out = pointer<product::Bf16>(args.gate_up_RX);
  arguments.y = pointer<product::Bf16>(args.y_RF);
  arguments.R = narrow<int>(args.x_RD.size(0));
  arguments.F = narrow<int>(F);
  constexpr int kHalf = product::kTileColumns / 2;
  return product::run(device, "linear_swiglu_forward_kernel", product::linear_swiglu_forward_kernel,
                      args.x_RD, args.weight_XD, kHalf, arguments.F / kHalf, arguments);
}

bool linear_swiglu_backward(const Context& context, const ops::LinearSwigluBackward& args) {
  namespace product = hopper::product;
  CudaDevice& device = cuda_device(context);
  const int64_t F = args.weight_DF.size(1);
  if (!product::is_fit(device, args.dz_RD, F) ||
      !all_aligned(args.dz_RD, args.weight_DF, args.gate_up_RX, args.dgate_up_RX))
    return false;
  product::Arguments arguments{};
  arguments.gate_up = pointer<const product::Bf16>(args.gate_up_RX);
  arguments.out = pointer<product::Bf16>(args.dgate_up_RX);
  arguments.R = narrow<int>(args.dz_RD.size(0));
  arguments.F = narrow<int>(F);
  return product::run(device, "linear_swiglu_backward_kernel",
                      product::linear_swiglu_backward_kernel, args.dz_RD, args.weight_DF,
                      product::kDepth, arguments.F / product::kTileColumns, arguments);
}

}  // namespace deltatrain::backend::cuda
