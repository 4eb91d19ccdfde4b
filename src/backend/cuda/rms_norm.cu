// RMSNorm with residual add. Rows of up to 2048 aligned elements, activations in bf16, are held in
// registers, so that every tensor passes through memory once; other rows take a plain kernel that
// reads its inputs twice. Stream: the dtype of sums and of their gradient, bf16 or float.
#include <type_traits>

#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kVector = 8;  // bf16 elements of one 16-byte access

// Blocks of the backward kernel on a multiprocessor: rows of an f32 stream need more registers.
template <class Stream>
constexpr int kHeldBlocks = sizeof(Stream) == 2 ? 4 : 3;

// Rows of gradients of the weight that the backward kernels leave; also their number of blocks.
template <class Stream>
constexpr int64_t kHeldPartials = 132 * kHeldBlocks<Stream>;
constexpr int64_t kPlainPartials = 264;
constexpr int kPlainThreads = 256;

// How rows of D elements are dealt to threads: kThreads threads own a row, each kHeld vectors of
// it. A block has kGroups such groups, which take different rows.
template <int kThreads_, int kHeld_, int kGroups_>
struct HeldRow {
  static constexpr int kThreads = kThreads_;
  static constexpr int kHeld = kHeld_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kBlock = kThreads * kGroups;
  static constexpr int64_t kMaxColumns = int64_t{kThreads} * kHeld * kVector;
};
using NarrowRow = HeldRow<kWarpSize, 4, 4>;    // up to 1024
using WideRow = HeldRow<4 * kWarpSize, 2, 1>;  // up to 2048

// Over the threads of one row.
template <class Row>
__device__ __forceinline__ float sum_over_row(float value, float* s_scratch) {
  if constexpr (Row::kThreads == kWarpSize) {
    return sum_over_lanes<kWarpSize>(value);
  } else {
    static_assert(Row::kGroups == 1);
    return sum_over_block<Row::kThreads>(value, s_scratch);
  }
}

// Grid: one group of threads per row. Bytes per row: x, residual, sum, y of D elements each, once.
template <class Row, class In, class Stream>
__global__ void __launch_bounds__(Row::kBlock)
    rms_norm_forward_held_kernel(const In* x, int64_t x_stride, const Stream* residual,
                                 const float* weight, Stream* sum, Bf16* y, float* inv_rms,
                                 int64_t R, int64_t D, float eps) {
  __shared__ float s_scratch[kWarpSize];
  const int t = static_cast<int>(threadIdx.x) % Row::kThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Row::kGroups + threadIdx.x / Row::kThreads;
  if (Row::kGroups > 1 && row >= R) return;  // whole warps
  const int num_vectors = static_cast<int>(D / kVector);

  Pack<In, kVector> in[Row::kHeld];
  Pack<Stream, kVector> extra[Row::kHeld];
#pragma unroll
  for (int j = 0; j < Row::kHeld; ++j) {
    const int i = t + j * Row::kThreads;
    in[j].set_zero();
    extra[j].set_zero();
    if (i < num_vectors) {
      in[j] = load_pack<In, kVector, Reuse::kStreaming>(x + row * x_stride + i * kVector);
      if (residual != nullptr)
        extra[j] = load_pack<Stream, kVector, Reuse::kStreaming>(residual + row * D + i * kVector);
    }
  }
  float s[Row::kHeld][kVector];
  float sum_of_squares = 0;
#pragma unroll
  for (int j = 0; j < Row::kHeld; ++j) {
    float other[kVector];
    in[j].unpack(s[j]);
    extra[j].unpack(other);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      s[j][e] += other[e];
      sum_of_squares += s[j][e] * s[j][e];
    }
  }
  const float r =
      rsqrtf(sum_over_row<Row>(sum_of_squares, s_scratch) / static_cast<float>(D) + eps);
  if (t == 0) inv_rms[row] = r;
#pragma unroll
  for (int j = 0; j < Row::kHeld; ++j) {
    const int i = t + j * Row::kThreads;
    if (i >= num_vectors) continue;
    if (sum != nullptr) store_values(sum + row * D + i * kVector, s[j]);
    float w[kVector];
    load_values(weight + i * kVector, w);
    float out[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) out[e] = s[j][e] * r * w[e];
    store_values(y + row * D + i * kVector, out);
  }
}

// Grid: kHeldPartials blocks that walk over the rows; each leaves one row of dweight's partial
// sums. Bytes per row: dy, sum, dsum, dx of D elements each, once. dx_rounded: of an f32 stream only.
template <class Row, class Stream>
__global__ void __launch_bounds__(Row::kBlock, kHeldBlocks<Stream>)
    rms_norm_backward_held_kernel(const Bf16* dy, const Stream* sum, int64_t sum_stride,
                                  const float* weight, const float* inv_rms, const Stream* dsum,
                                  int64_t dsum_stride, Stream* dx, int64_t dx_stride,
                                  Bf16* dx_rounded, float* partial, int64_t R, int64_t D) {
  __shared__ float s_scratch[kWarpSize];
  __shared__ float s_dweight[Row::kGroups > 1 ? Row::kMaxColumns : 1];
  const int t = static_cast<int>(threadIdx.x) % Row::kThreads;
  const int group = static_cast<int>(threadIdx.x) / Row::kThreads;
  const int num_vectors = static_cast<int>(D / kVector);
  const float inv_D = 1.0F / static_cast<float>(D);

  float dweight[Row::kHeld][kVector] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * Row::kGroups;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * Row::kGroups + group; row < R;
       row += step) {
    Pack<Bf16, kVector> in_dy[Row::kHeld];
    Pack<Stream, kVector> in_sum[Row::kHeld];
    Pack<Stream, kVector> in_dsum[Row::kHeld];
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      const int i = t + j * Row::kThreads;
      in_dy[j].set_zero();
      in_sum[j].set_zero();
      in_dsum[j].set_zero();
      if (i < num_vectors) {
        in_dy[j] = load_pack<Bf16, kVector, Reuse::kStreaming>(dy + row * D + i * kVector);
        in_sum[j] =
            load_pack<Stream, kVector, Reuse::kStreaming>(sum + row * sum_stride + i * kVector);
        if (dsum != nullptr) {
          in_dsum[j] =
              load_pack<Stream, kVector, Reuse::kStreaming>(dsum + row * dsum_stride + i * kVector);
        }
      }
    }
    const float r = inv_rms[row];
    float dot = 0;
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      const int i = t + j * Row::kThreads;
      if (i >= num_vectors) continue;
      float g[kVector];
      float s[kVector];
      float w[kVector];
      in_dy[j].unpack(g);
      in_sum[j].unpack(s);
      load_values(weight + i * kVector, w);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float g_xhat = g[e] * (s[e] * r);
        dweight[j][e] += g_xhat;
        dot += g_xhat * w[e];
      }
    }
    const float c = sum_over_row<Row>(dot, s_scratch) * inv_D;
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      const int i = t + j * Row::kThreads;
      if (i >= num_vectors) continue;
      float g[kVector];
      float s[kVector];
      float w[kVector];
      float out[kVector];
      in_dy[j].unpack(g);
      in_sum[j].unpack(s);
      in_dsum[j].unpack(out);
      load_values(weight + i * kVector, w);
#pragma unroll
      for (int e = 0; e < kVector; ++e) out[e] += r * (w[e] * g[e] - s[e] * r * c);
      store_values(dx + row * dx_stride + i * kVector, out);
      if constexpr (sizeof(Stream) == 4) {
        if (dx_rounded != nullptr) store_values(dx_rounded + row * D + i * kVector, out);
      }
    }
  }

  float* my_partial = partial + static_cast<int64_t>(blockIdx.x) * D;
  if constexpr (Row::kGroups == 1) {
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      const int i = t + j * Row::kThreads;
      if (i < num_vectors) store_values(my_partial + i * kVector, dweight[j]);
    }
  } else {
    // Groups add theirs one after the other.
    for (int turn = 0; turn < Row::kGroups; ++turn) {
      if (group == turn) {
#pragma unroll
        for (int j = 0; j < Row::kHeld; ++j) {
          const int i = t + j * Row::kThreads;
          if (i >= num_vectors) continue;
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            float* target = &s_dweight[i * kVector + e];
            *target = turn == 0 ? dweight[j][e] : *target + dweight[j][e];
          }
        }
      }
      __syncthreads();
    }
    for (int column = static_cast<int>(threadIdx.x); column < D; column += Row::kBlock) {
      my_partial[column] = s_dweight[column];
    }
  }
}

// Grid: one block per row; any width.
template <class T, class In, class Stream>
__global__ void __launch_bounds__(kPlainThreads)
    rms_norm_forward_plain_kernel(const In* x, int64_t x_stride, const Stream* residual,
                                  const float* weight, Stream* sum, T* y, float* inv_rms, int64_t D,
                                  float eps) {
  __shared__ float s_scratch[kPlainThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  float sum_of_squares = 0;
  for (int64_t d = threadIdx.x; d < D; d += kPlainThreads) {
    float s = to_float(x[row * x_stride + d]);
    if (residual != nullptr) s += to_float(residual[row * D + d]);
    sum_of_squares += s * s;
  }
  const float mean =
      sum_over_block<kPlainThreads>(sum_of_squares, s_scratch) / static_cast<float>(D);
  const float r = 1.0F / sqrtf(mean + eps);
  if (threadIdx.x == 0) inv_rms[row] = r;
  // A thread meets the same elements again, so `sum` may lie over x or residual.
  for (int64_t d = threadIdx.x; d < D; d += kPlainThreads) {
    float s = to_float(x[row * x_stride + d]);
    if (residual != nullptr) s += to_float(residual[row * D + d]);
    if (sum != nullptr) sum[row * D + d] = from_float<Stream>(s);
    y[row * D + d] = from_float<T>(s * r * weight[d]);
  }
}

// Grid: kPlainPartials blocks that walk over the rows; any width. Shared: D floats of dweight, each
// owned by one thread.
template <class T, class Stream>
__global__ void __launch_bounds__(kPlainThreads)
    rms_norm_backward_plain_kernel(const T* dy, const Stream* sum, int64_t sum_stride,
                                   const float* weight, const float* inv_rms, const Stream* dsum,
                                   int64_t dsum_stride, Stream* dx, int64_t dx_stride,
                                   T* dx_rounded, float* partial, int64_t R, int64_t D) {
  float* const s_dweight = dynamic_shared<float>();
  __shared__ float s_scratch[kPlainThreads / kWarpSize];
  for (int64_t d = threadIdx.x; d < D; d += kPlainThreads) s_dweight[d] = 0;
  for (int64_t row = blockIdx.x; row < R; row += gridDim.x) {
    const float r = inv_rms[row];
    float dot = 0;
    for (int64_t d = threadIdx.x; d < D; d += kPlainThreads) {
      const float g_xhat = to_float(dy[row * D + d]) * (to_float(sum[row * sum_stride + d]) * r);
      s_dweight[d] += g_xhat;
      dot += g_xhat * weight[d];
    }
    const float c = sum_over_block<kPlainThreads>(dot, s_scratch) / static_cast<float>(D);
    for (int64_t d = threadIdx.x; d < D; d += kPlainThreads) {
      float out =
          r * (weight[d] * to_float(dy[row * D + d]) - to_float(sum[row * sum_stride + d]) * r * c);
      if (dsum != nullptr) out += to_float(dsum[row * dsum_stride + d]);
      dx[row * dx_stride + d] = from_float<Stream>(out);
      if (dx_rounded != nullptr) dx_rounded[row * D + d] = from_float<T>(out);
    }
  }
  for (int64_t d = threadIdx.x; d < D; d += kPlainThreads) {
    partial[static_cast<int64_t>(blockIdx.x) * D + d] = s_dweight[d];
  }
}

bool fits_held_rows(DType dtype, int64_t D) {
  return dtype == DType::kBF16 && D % kVector == 0 && D <= WideRow::kMaxColumns;
}

// Calls function(ElementType<T>, ElementType<Stream>) with the types of activations and of the stream.
template <class Function>
void with_types(const char* op, DType activation, DType stream, Function function) {
  with_activation_type(op, activation, [&](auto element) {
    if (activation == DType::kBF16 && stream == DType::kF32)
      return function(ElementType<Bf16>{}, ElementType<float>{});
    function(element, element);
  });
}

}  // namespace

void rms_norm_forward(const Context& context, const ops::RmsNormForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.y_RD.size(0);
  const int64_t D = args.y_RD.size(1);
  const auto eps = static_cast<float>(args.eps);
  const bool held = fits_held_rows(args.y_RD.dtype(), D) &&
                    all_aligned(args.x_RD, args.residual_RD, args.weight_D, args.sum_RD, args.y_RD);
  const auto run = [&](auto element, auto in, auto stream) {
    using T = typename decltype(element)::type;
    using In = typename decltype(in)::type;
    using Stream = typename decltype(stream)::type;
    const auto* const x = pointer<const In>(args.x_RD);
    const auto* const residual = pointer<const Stream>(args.residual_RD);
    const auto* const weight = pointer<const float>(args.weight_D);
    auto* const sum = pointer<Stream>(args.sum_RD);
    auto* const y = pointer<T>(args.y_RD);
    auto* const inv_rms = pointer<float>(args.inv_rms_R);
    if constexpr (std::is_same_v<T, Bf16>) {
      const auto run_held = [&](auto row) {
        using Row = decltype(row);
        launch(device, "rms_norm_forward_held_kernel",
               rms_norm_forward_held_kernel<Row, In, Stream>, divide_up(R, Row::kGroups),
               Row::kBlock, 0, x, args.x_RD.stride(0), residual, weight, sum, y, inv_rms, R, D,
               eps);
      };
      if (held) return D <= NarrowRow::kMaxColumns ? run_held(NarrowRow{}) : run_held(WideRow{});
    }
    launch(device, "rms_norm_forward_plain_kernel", rms_norm_forward_plain_kernel<T, In, Stream>, R,
           kPlainThreads, 0, x, args.x_RD.stride(0), residual, weight, sum, y, inv_rms, D, eps);
  };
  const Tensor& stream_RD = args.residual_RD.defined() ? args.residual_RD : args.x_RD;
  with_types("rms_norm_forward", args.y_RD.dtype(), stream_RD.dtype(),
             [&](auto element, auto stream) {
               if (args.residual_RD.defined()) return run(element, element, stream);
               run(element, stream, stream);
             });
}

void rms_norm_backward(const Context& context, const ops::RmsNormBackward& args) {
  const int64_t R = args.dy_RD.size(0);
  const int64_t D = args.dy_RD.size(1);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial = context.arena->scratch(DType::kF32, {kHeldPartials<Bf16>, D});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  const int64_t dsum_stride = args.dsum_RD.defined() ? args.dsum_RD.stride(0) : 0;
  const bool is_f32_stream = args.sum_RD.dtype() == DType::kF32;
  const bool held = fits_held_rows(args.dy_RD.dtype(), D) &&
                    (is_f32_stream || !args.dx_rounded_RD.defined()) &&
                    all_aligned(args.dy_RD, args.sum_RD, args.weight_D, args.dsum_RD, args.dx_RD,
                                args.dx_rounded_RD);
  with_types("rms_norm_backward", args.dy_RD.dtype(), args.sum_RD.dtype(),
             [&](auto element, auto stream) {
               using T = typename decltype(element)::type;
               using Stream = typename decltype(stream)::type;
               const auto run = [&](const char* name, auto kernel, int64_t grid, int block,
                                    size_t shared) {
                 launch(device, name, kernel, grid, block, shared, pointer<const T>(args.dy_RD),
                        pointer<const Stream>(args.sum_RD), args.sum_RD.stride(0),
                        pointer<const float>(args.weight_D), pointer<const float>(args.inv_rms_R),
                        pointer<const Stream>(args.dsum_RD), dsum_stride,
                        pointer<Stream>(args.dx_RD), args.dx_RD.stride(0),
                        pointer<T>(args.dx_rounded_RD), pointer<float>(partial), R, D);
                 add_partial_rows(device, partial.rows(0, grid), pointer<float>(args.dweight_D));
               };
               if constexpr (std::is_same_v<T, Bf16>) {
                 const auto run_held = [&](auto row) {
                   using Row = decltype(row);
                   run("rms_norm_backward_held_kernel", rms_norm_backward_held_kernel<Row, Stream>,
                       kHeldPartials<Stream>, Row::kBlock, 0);
                 };
                 if (held)
                   return D <= NarrowRow::kMaxColumns ? run_held(NarrowRow{}) : run_held(WideRow{});
               }
               const auto shared_bytes = static_cast<size_t>(D) * sizeof(float);
               allow_shared_bytes(rms_norm_backward_plain_kernel<T, Stream>, shared_bytes);
               run("rms_norm_backward_plain_kernel", rms_norm_backward_plain_kernel<T, Stream>,
                   kPlainPartials, kPlainThreads, shared_bytes);
             });
}

}  // namespace deltatrain::backend::cuda
