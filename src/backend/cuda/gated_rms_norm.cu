// RMSNorm over value heads times an activated gate: bf16 heads of 32, 64 or 128 elements by tiles
// of lanes, others by a plain kernel.
#include "backend/cuda/activations.cuh"
#include "backend/cuda/head_rows.cuh"
#include "backend/cuda/kernels.h"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
using ops::GateActivation;
constexpr int kUnitsPerTile =
    2;  // heads that one tile takes at a time, all loaded before the first is used
constexpr int64_t kPartials =
    396;  // rows of dweight's partial sums, and blocks of the backward kernels
constexpr int kPlainWarps = kHeadBlock / kWarpSize;

// act(z), and its derivative.
template <class T>
__device__ __forceinline__ float activate(float z, GateActivation activation, float& slope) {
  const float s = sigmoid<T>(z);
  if (activation == GateActivation::kSilu) {
    slope = s * (1.0F + z * (1.0F - s));
    return z * s;
  }
  slope = s * (1.0F - s);
  return s;
}

// Grid: one tile of lanes per kUnitsPerTile heads. Bytes per head: o, gate, y, once.
template <int kLanes>
__global__ void __launch_bounds__(kHeadBlock)
    gated_rms_norm_forward_kernel(const Bf16* o, const Bf16* gate, int64_t gate_stride,
                                  const float* weight, Bf16* y, float* inv_rms, int64_t units,
                                  Divider heads, float eps, GateActivation activation) {
  constexpr int kWidth = kLanes * kHeadVector;
  constexpr int kTiles = HeadTile<kLanes>::kTilesPerBlock;
  const HeadTile<kLanes> tile;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kTiles * kUnitsPerTile) + tile.tile;
  Pack<Bf16, kHeadVector> in_o[kUnitsPerTile];
  Pack<Bf16, kHeadVector> in_gate[kUnitsPerTile];
#pragma unroll
  for (int u = 0; u < kUnitsPerTile; ++u) {
    const int64_t unit = first + u * kTiles;
    in_o[u].set_zero();
    in_gate[u].set_zero();
    if (unit < units) {
      const int64_t row = heads.divide(static_cast<uint32_t>(unit));
      const int64_t head = unit - row * heads.divisor;
      in_o[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(o + unit * kWidth + tile.column);
      in_gate[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(gate + row * gate_stride +
                                                                   head * kWidth + tile.column);
    }
  }
  float w[kHeadVector];
  load_values(weight + tile.column, w);
#pragma unroll
  for (int u = 0; u < kUnitsPerTile; ++u) {
    const int64_t unit = first + u * kTiles;
    float v[kHeadVector];
    float z[kHeadVector];
    in_o[u].unpack(v);
    in_gate[u].unpack(z);
    float sum_of_squares = 0;
#pragma unroll
    for (int e = 0; e < kHeadVector; ++e) sum_of_squares += v[e] * v[e];
    const float r = rsqrtf(sum_over_lanes<kLanes>(sum_of_squares) * (1.0F / kWidth) + eps);
    if (unit >= units) continue;
#pragma unroll
    for (int e = 0; e < kHeadVector; ++e) {
      float slope;
      v[e] *= r * w[e] * activate<Bf16>(z[e], activation, slope);
    }
    store_values(y + unit * kWidth + tile.column, v);
    if (tile.column == 0) inv_rms[unit] = r;
  }
}

// Grid: kPartials blocks that walk over the heads; each leaves one row of dweight's partial sums.
// Bytes per head: dy, o, gate, do, dgate, once. Static shared: one float per thread and element.
template <int kLanes>
__global__ void __launch_bounds__(kHeadBlock, 3)
    gated_rms_norm_backward_kernel(const Bf16* dy, const Bf16* o, const Bf16* gate,
                                   int64_t gate_stride, const float* weight, const float* inv_rms,
                                   Bf16* d_o, Bf16* dgate, int64_t dgate_stride, float* partial,
                                   int64_t units, Divider heads, GateActivation activation) {
  constexpr int kWidth = kLanes * kHeadVector;
  constexpr int kTiles = HeadTile<kLanes>::kTilesPerBlock;
  __shared__ float s_dweight[kTiles][kWidth];
  const HeadTile<kLanes> tile;
  float w[kHeadVector];
  load_values(weight + tile.column, w);
  float dweight[kHeadVector] = {};

  const int64_t step = static_cast<int64_t>(gridDim.x) * (kTiles * kUnitsPerTile);
  // The bound is that of the block, so that whole warps stay for the sums over lanes.
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * (kTiles * kUnitsPerTile); base < units;
       base += step) {
    Pack<Bf16, kHeadVector> in_dy[kUnitsPerTile];
    Pack<Bf16, kHeadVector> in_o[kUnitsPerTile];
    Pack<Bf16, kHeadVector> in_gate[kUnitsPerTile];
    int64_t gate_at[kUnitsPerTile];
    int64_t dgate_at[kUnitsPerTile];
#pragma unroll
    for (int u = 0; u < kUnitsPerTile; ++u) {
      const int64_t unit = base + tile.tile + u * kTiles;
      in_dy[u].set_zero();
      in_o[u].set_zero();
      in_gate[u].set_zero();
      gate_at[u] = 0;
      dgate_at[u] = 0;
      if (unit < units) {
        const int64_t row = heads.divide(static_cast<uint32_t>(unit));
        const int64_t head = unit - row * heads.divisor;
        gate_at[u] = row * gate_stride + head * kWidth + tile.column;
        dgate_at[u] = row * dgate_stride + head * kWidth + tile.column;
        in_dy[u] =
            load_pack<Bf16, kHeadVector, Reuse::kStreaming>(dy + unit * kWidth + tile.column);
        in_o[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(o + unit * kWidth + tile.column);
        in_gate[u] = load_pack<Bf16, kHeadVector, Reuse::kStreaming>(gate + gate_at[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnitsPerTile; ++u) {
      const int64_t unit = base + tile.tile + u * kTiles;
      const float r = unit < units ? inv_rms[unit] : 0.0F;
      float g[kHeadVector];
      float xhat[kHeadVector];
      float z[kHeadVector];
      in_dy[u].unpack(g);
      in_o[u].unpack(xhat);
      in_gate[u].unpack(z);
      float dot = 0;
#pragma unroll
      for (int e = 0; e < kHeadVector; ++e) {
        xhat[e] *= r;
        float slope;
        const float act = activate<Bf16>(z[e], activation, slope);
        z[e] = g[e] * xhat[e] * w[e] * slope;  // dgate
        g[e] *= act;                           // du
        dweight[e] += g[e] * xhat[e];
        g[e] *= w[e];
        dot += g[e] * xhat[e];
      }
      dot = sum_over_lanes<kLanes>(dot) * (1.0F / kWidth);
      if (unit >= units) continue;
#pragma unroll
      for (int e = 0; e < kHeadVector; ++e) g[e] = r * (g[e] - xhat[e] * dot);
      store_values(d_o + unit * kWidth + tile.column, g);
      store_values(dgate + dgate_at[u], z);
    }
  }

#pragma unroll
  for (int e = 0; e < kHeadVector; ++e) s_dweight[tile.tile][tile.column + e] = dweight[e];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < kWidth; column += kHeadBlock) {
    float sum = 0;
    for (int i = 0; i < kTiles; ++i) sum += s_dweight[i][column];
    partial[static_cast<int64_t>(blockIdx.x) * kWidth + column] = sum;
  }
}

// Grid: one warp per head; any width.
template <class T>
__global__ void __launch_bounds__(kHeadBlock)
    gated_rms_norm_forward_plain_kernel(const T* o, const T* gate, int64_t gate_stride,
                                        const float* weight, T* y, float* inv_rms, int64_t units,
                                        Divider heads, int64_t V, float eps,
                                        GateActivation activation) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kPlainWarps + warp_id();
  if (unit >= units) return;
  const int64_t row = heads.divide(static_cast<uint32_t>(unit));
  const T* z = gate + row * gate_stride + (unit - row * heads.divisor) * V;
  float sum_of_squares = 0;
  for (int64_t v = lane_id(); v < V; v += kWarpSize) {
    const float x = to_float(o[unit * V + v]);
    sum_of_squares += x * x;
  }
  const float r =
      1.0F / sqrtf(sum_over_lanes<kWarpSize>(sum_of_squares) / static_cast<float>(V) + eps);
  for (int64_t v = lane_id(); v < V; v += kWarpSize) {
    float slope;
    const float act = activate<T>(to_float(z[v]), activation, slope);
    y[unit * V + v] = from_float<T>(to_float(o[unit * V + v]) * r * weight[v] * act);
  }
  if (lane_id() == 0) inv_rms[unit] = r;
}

// Grid: kPartials blocks whose warps walk over the heads; any width. Shared: V floats of dweight
// per warp.
template <class T>
__global__ void __launch_bounds__(kHeadBlock)
    gated_rms_norm_backward_plain_kernel(const T* dy, const T* o, const T* gate,
                                         int64_t gate_stride, const float* weight,
                                         const float* inv_rms, T* d_o, T* dgate,
                                         int64_t dgate_stride, float* partial, int64_t units,
                                         Divider heads, int64_t V, GateActivation activation) {
  float* const s_dweight = dynamic_shared<float>();
  float* mine = s_dweight + warp_id() * V;
  for (int64_t v = lane_id(); v < V; v += kWarpSize) mine[v] = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kPlainWarps;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kPlainWarps + warp_id(); unit < units;
       unit += step) {
    const int64_t row = heads.divide(static_cast<uint32_t>(unit));
    const int64_t head = unit - row * heads.divisor;
    const T* z = gate + row * gate_stride + head * V;
    T* dz = dgate + row * dgate_stride + head * V;
    const float r = inv_rms[unit];
    float dot = 0;
    for (int64_t v = lane_id(); v < V; v += kWarpSize) {
      float slope;
      const float act = activate<T>(to_float(z[v]), activation, slope);
      const float xhat = to_float(o[unit * V + v]) * r;
      const float du_xhat = to_float(dy[unit * V + v]) * act * xhat;
      mine[v] += du_xhat;
      dot += du_xhat * weight[v];
    }
    dot = sum_over_lanes<kWarpSize>(dot) / static_cast<float>(V);
    for (int64_t v = lane_id(); v < V; v += kWarpSize) {
      float slope;
      const float act = activate<T>(to_float(z[v]), activation, slope);
      const float xhat = to_float(o[unit * V + v]) * r;
      const float g = to_float(dy[unit * V + v]);
      d_o[unit * V + v] = from_float<T>(r * (g * act * weight[v] - xhat * dot));
      dz[v] = from_float<T>(g * xhat * weight[v] * slope);
    }
  }
  __syncthreads();
  for (int64_t v = threadIdx.x; v < V; v += kHeadBlock) {
    float sum = 0;
    for (int warp = 0; warp < kPlainWarps; ++warp) sum += s_dweight[warp * V + v];
    partial[static_cast<int64_t>(blockIdx.x) * V + v] = sum;
  }
}

}  // namespace

void gated_rms_norm_forward(const Context& context, const ops::GatedRmsNormForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t G = args.o_RGV.size(1);
  const int64_t V = args.o_RGV.size(2);
  const int64_t units = args.o_RGV.size(0) * G;
  const Divider heads(G);
  const auto eps = static_cast<float>(args.eps);
  DELTATRAIN_CHECK(units <= INT_MAX, std::to_string(units));
  if (all_aligned(args.o_RGV, args.gate_RGV, args.weight_V, args.y_RGV) &&
      with_head_lanes(args.o_RGV.dtype(), V, [&](auto lanes) {
        constexpr int kLanes = decltype(lanes)::value;
        launch(device, "gated_rms_norm_forward_kernel", gated_rms_norm_forward_kernel<kLanes>,
               divide_up(units, HeadTile<kLanes>::kTilesPerBlock * kUnitsPerTile), kHeadBlock, 0,
               pointer<const Bf16>(args.o_RGV), pointer<const Bf16>(args.gate_RGV),
               args.gate_RGV.stride(0), pointer<const float>(args.weight_V),
               pointer<Bf16>(args.y_RGV), pointer<float>(args.inv_rms_RG), units, heads, eps,
               args.activation);
      })) {
    return;
  }
  with_activation_type("gated_rms_norm_forward", args.o_RGV.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    launch(device, "gated_rms_norm_forward_plain_kernel", gated_rms_norm_forward_plain_kernel<T>,
           divide_up(units, kPlainWarps), kHeadBlock, 0, pointer<const T>(args.o_RGV),
           pointer<const T>(args.gate_RGV), args.gate_RGV.stride(0),
           pointer<const float>(args.weight_V), pointer<T>(args.y_RGV),
           pointer<float>(args.inv_rms_RG), units, heads, V, eps, args.activation);
  });
}

void gated_rms_norm_backward(const Context& context, const ops::GatedRmsNormBackward& args) {
  const int64_t G = args.o_RGV.size(1);
  const int64_t V = args.o_RGV.size(2);
  const int64_t units = args.o_RGV.size(0) * G;
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial = context.arena->scratch(DType::kF32, {kPartials, V});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  const Divider heads(G);
  DELTATRAIN_CHECK(units <= INT_MAX, std::to_string(units));
  if (!(all_aligned(args.dy_RGV, args.o_RGV, args.gate_RGV, args.weight_V, args.do_RGV,
                    args.dgate_RGV) &&
        with_head_lanes(args.o_RGV.dtype(), V, [&](auto lanes) {
          constexpr int kLanes = decltype(lanes)::value;
          launch(device, "gated_rms_norm_backward_kernel", gated_rms_norm_backward_kernel<kLanes>,
                 kPartials, kHeadBlock, 0, pointer<const Bf16>(args.dy_RGV),
                 pointer<const Bf16>(args.o_RGV), pointer<const Bf16>(args.gate_RGV),
                 args.gate_RGV.stride(0), pointer<const float>(args.weight_V),
                 pointer<const float>(args.inv_rms_RG), pointer<Bf16>(args.do_RGV),
                 pointer<Bf16>(args.dgate_RGV), args.dgate_RGV.stride(0), pointer<float>(partial),
                 units, heads, args.activation);
        }))) {
    const auto shared_bytes = static_cast<size_t>(V) * kPlainWarps * sizeof(float);
    with_activation_type("gated_rms_norm_backward", args.o_RGV.dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      allow_shared_bytes(gated_rms_norm_backward_plain_kernel<T>, shared_bytes);
      launch(device, "gated_rms_norm_backward_plain_kernel",
             gated_rms_norm_backward_plain_kernel<T>, kPartials, kHeadBlock, shared_bytes,
             pointer<const T>(args.dy_RGV), pointer<const T>(args.o_RGV),
             pointer<const T>(args.gate_RGV), args.gate_RGV.stride(0),
             pointer<const float>(args.weight_V), pointer<const float>(args.inv_rms_RG),
             pointer<T>(args.do_RGV), pointer<T>(args.dgate_RGV), args.dgate_RGV.stride(0),
             pointer<float>(partial), units, heads, V, args.activation);
    });
  }
  add_partial_rows(device, partial, pointer<float>(args.dweight_V));
}

}  // namespace deltatrain::backend::cuda
