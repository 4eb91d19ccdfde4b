// L2 norm over heads: bf16 heads of 32, 64 or 128 elements by tiles of lanes, others by a plain
// kernel.
#include "backend/cuda/head_rows.cuh"
#include "backend/cuda/kernels.h"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kUnitsPerTile = 2;  // heads that one tile takes, all loaded before the first is used

// Grid: one tile of lanes per kUnitsPerTile heads. Bytes per head: x and y, once.
template <int kLanes>
__global__ void __launch_bounds__(kHeadBlock)
    l2_norm_forward_kernel(const Bf16* x, int64_t x_stride, Bf16* y, float* inv_norm, int64_t units,
                           Divider heads, float eps) {
  constexpr int kWidth = kLanes * kHeadVector;
  const HeadTile<kLanes> tile;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (HeadTile<kLanes>::kTilesPerBlock * kUnitsPerTile) +
      tile.tile;
  Pack<Bf16, kHeadVector> in[kUnitsPerTile];
#pragma unroll
  for (int u = 0; u < kUnitsPerTile; ++u) {
    const int64_t unit = first + u * HeadTile<kLanes>::kTilesPerBlock;
    in[u].set_zero();
    if (unit < units) {
      const int64_t row = heads.divide(static_cast<uint32_t>(unit));
      const int64_t head = unit - row * heads.divisor;
      in[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(x + row * x_stride + head * kWidth +
                                                              tile.column);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnitsPerTile; ++u) {
    const int64_t unit = first + u * HeadTile<kLanes>::kTilesPerBlock;
    float v[kHeadVector];
    in[u].unpack(v);
    float sum_of_squares = 0;
#pragma unroll
    for (int e = 0; e < kHeadVector; ++e) sum_of_squares += v[e] * v[e];
    const float r = rsqrtf(sum_over_lanes<kLanes>(sum_of_squares) + eps);
    if (unit >= units) continue;
#pragma unroll
    for (int e = 0; e < kHeadVector; ++e) v[e] *= r;
    store_values(y + unit * kWidth + tile.column, v);
    if (tile.column == 0) inv_norm[unit] = r;
  }
}

// Grid as forward. Bytes per head: dy, y, dx, once.
template <int kLanes>
__global__ void __launch_bounds__(kHeadBlock)
    l2_norm_backward_kernel(const Bf16* dy, const Bf16* y, const float* inv_norm, Bf16* dx,
                            int64_t dx_stride, int64_t units, Divider heads) {
  constexpr int kWidth = kLanes * kHeadVector;
  const HeadTile<kLanes> tile;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (HeadTile<kLanes>::kTilesPerBlock * kUnitsPerTile) +
      tile.tile;
  Pack<Bf16, kHeadVector> in_dy[kUnitsPerTile];
  Pack<Bf16, kHeadVector> in_y[kUnitsPerTile];
#pragma unroll
  for (int u = 0; u < kUnitsPerTile; ++u) {
    const int64_t unit = first + u * HeadTile<kLanes>::kTilesPerBlock;
    in_dy[u].set_zero();
    in_y[u].set_zero();
    if (unit < units) {
      in_dy[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(dy + unit * kWidth + tile.column);
      in_y[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(y + unit * kWidth + tile.column);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnitsPerTile; ++u) {
    const int64_t unit = first + u * HeadTile<kLanes>::kTilesPerBlock;
    float g[kHeadVector];
    float v[kHeadVector];
    in_dy[u].unpack(g);
    in_y[u].unpack(v);
    float dot = 0;
#pragma unroll
    for (int e = 0; e < kHeadVector; ++e) dot += g[e] * v[e];
    dot = sum_over_lanes<kLanes>(dot);
    if (unit >= units) continue;
    const float r = inv_norm[unit];
#pragma unroll
    for (int e = 0; e < kHeadVector; ++e) g[e] = r * (g[e] - v[e] * dot);
    const int64_t row = heads.divide(static_cast<uint32_t>(unit));
    const int64_t head = unit - row * heads.divisor;
    store_values(dx + row * dx_stride + head * kWidth + tile.column, g);
  }
}

// Grid: one warp per head; any width.
template <class T>
__global__ void __launch_bounds__(kHeadBlock)
    l2_norm_forward_plain_kernel(const T* x, int64_t x_stride, T* y, float* inv_norm, int64_t units,
                                 Divider heads, int64_t K, float eps) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * (kHeadBlock / kWarpSize) + warp_id();
  if (unit >= units) return;
  const int64_t row = heads.divide(static_cast<uint32_t>(unit));
  const T* in = x + row * x_stride + (unit - row * heads.divisor) * K;
  float sum_of_squares = 0;
  for (int64_t k = lane_id(); k < K; k += kWarpSize)
    sum_of_squares += to_float(in[k]) * to_float(in[k]);
  const float r = 1.0F / sqrtf(sum_over_lanes<kWarpSize>(sum_of_squares) + eps);
  for (int64_t k = lane_id(); k < K; k += kWarpSize)
    y[unit * K + k] = from_float<T>(to_float(in[k]) * r);
  if (lane_id() == 0) inv_norm[unit] = r;
}

template <class T>
__global__ void __launch_bounds__(kHeadBlock)
    l2_norm_backward_plain_kernel(const T* dy, const T* y, const float* inv_norm, T* dx,
                                  int64_t dx_stride, int64_t units, Divider heads, int64_t K) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * (kHeadBlock / kWarpSize) + warp_id();
  if (unit >= units) return;
  float dot = 0;
  for (int64_t k = lane_id(); k < K; k += kWarpSize)
    dot += to_float(dy[unit * K + k]) * to_float(y[unit * K + k]);
  dot = sum_over_lanes<kWarpSize>(dot);
  const float r = inv_norm[unit];
  const int64_t row = heads.divide(static_cast<uint32_t>(unit));
  T* out = dx + row * dx_stride + (unit - row * heads.divisor) * K;
  for (int64_t k = lane_id(); k < K; k += kWarpSize) {
    out[k] = from_float<T>(r * (to_float(dy[unit * K + k]) - to_float(y[unit * K + k]) * dot));
  }
}

}  // namespace

void l2_norm_forward(const Context& context, const ops::L2NormForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t H = args.x_RHK.size(1);
  const int64_t K = args.x_RHK.size(2);
  const int64_t units = args.x_RHK.size(0) * H;
  const Divider heads(H);
  const auto eps = static_cast<float>(args.eps);
  DELTATRAIN_CHECK(units <= INT_MAX, std::to_string(units));
  if (all_aligned(args.x_RHK, args.y_RHK) &&
      with_head_lanes(args.x_RHK.dtype(), K, [&](auto lanes) {
        constexpr int kLanes = decltype(lanes)::value;
        launch(device, "l2_norm_forward_kernel", l2_norm_forward_kernel<kLanes>,
               divide_up(units, HeadTile<kLanes>::kTilesPerBlock * kUnitsPerTile), kHeadBlock, 0,
               pointer<const Bf16>(args.x_RHK), args.x_RHK.stride(0), pointer<Bf16>(args.y_RHK),
               pointer<float>(args.inv_norm_RH), units, heads, eps);
      })) {
    return;
  }
  with_activation_type("l2_norm_forward", args.x_RHK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    launch(device, "l2_norm_forward_plain_kernel", l2_norm_forward_plain_kernel<T>,
           divide_up(units, kHeadBlock / kWarpSize), kHeadBlock, 0, pointer<const T>(args.x_RHK),
           args.x_RHK.stride(0), pointer<T>(args.y_RHK), pointer<float>(args.inv_norm_RH), units,
           heads, K, eps);
  });
}

void l2_norm_backward(const Context& context, const ops::L2NormBackward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t H = args.dy_RHK.size(1);
  const int64_t K = args.dy_RHK.size(2);
  const int64_t units = args.dy_RHK.size(0) * H;
  const Divider heads(H);
  DELTATRAIN_CHECK(units <= INT_MAX, std::to_string(units));
  if (all_aligned(args.dy_RHK, args.y_RHK, args.dx_RHK) &&
      with_head_lanes(args.dy_RHK.dtype(), K, [&](auto lanes) {
        constexpr int kLanes = decltype(lanes)::value;
        launch(device, "l2_norm_backward_kernel", l2_norm_backward_kernel<kLanes>,
               divide_up(units, HeadTile<kLanes>::kTilesPerBlock * kUnitsPerTile), kHeadBlock, 0,
               pointer<const Bf16>(args.dy_RHK), pointer<const Bf16>(args.y_RHK),
               pointer<const float>(args.inv_norm_RH), pointer<Bf16>(args.dx_RHK),
               args.dx_RHK.stride(0), units, heads);
      })) {
    return;
  }
  with_activation_type("l2_norm_backward", args.dy_RHK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    launch(device, "l2_norm_backward_plain_kernel", l2_norm_backward_plain_kernel<T>,
           divide_up(units, kHeadBlock / kWarpSize), kHeadBlock, 0, pointer<const T>(args.dy_RHK),
           pointer<const T>(args.y_RHK), pointer<const float>(args.inv_norm_RH),
           pointer<T>(args.dx_RHK), args.dx_RHK.stride(0), units, heads, K);
  });
}

}  // namespace deltatrain::backend::cuda
