#include "backend/cuda/linear_bias.h"

#include <algorithm>

#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 256;
constexpr int kLanes = kWarpSize;  // threads along columns
constexpr int kRowGroups = kBlock / kLanes;
constexpr int64_t kMaxPartials = 264;

// Grid: partial rows x column blocks, column blocks first. A block sums a range of rows for kLanes
// * kVector columns.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    linear_backward_bias_kernel(const T* dy, int64_t dy_stride, float* partial, int64_t R,
                                int64_t X, int64_t rows_per_partial, int64_t column_blocks) {
  __shared__ float s_sum[kRowGroups][kLanes * kVector];
  const int64_t range = blockIdx.x / column_blocks;
  const int lane = lane_id();
  const int group = warp_id();
  const int64_t column = ((blockIdx.x - range * column_blocks) * kLanes + lane) * kVector;
  const int64_t end = min(R, (range + 1) * rows_per_partial);
  float sum[kVector] = {};
  if (column < X) {
#pragma unroll 4
    for (int64_t row = range * rows_per_partial + group; row < end; row += kRowGroups) {
      float v[kVector];
      load_values(dy + row * dy_stride + column, v);
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum[e] += v[e];
    }
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) s_sum[group][lane * kVector + e] = sum[e];
  __syncthreads();
  const int64_t first_column = (blockIdx.x - range * column_blocks) * (kLanes * kVector);
  for (int i = static_cast<int>(threadIdx.x); i < kLanes * kVector; i += kBlock) {
    if (first_column + i >= X) continue;
    float total = 0;
    for (int g = 0; g < kRowGroups; ++g) total += s_sum[g][i];
    partial[range * X + first_column + i] = total;
  }
}

__global__ void __launch_bounds__(kBlock)
    linear_forward_bias_kernel(const float* x, __nv_bfloat16* y, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < size) y[i] = __float2bfloat16_rn(x[i]);
}

}  // namespace

int64_t num_row_sum_partials(int64_t R) {
  return std::clamp<int64_t>(divide_up(R, kRowGroups), 1, kMaxPartials);
}

void sum_rows(CudaDevice& device, const Tensor& dy_RX, const Tensor& partial_PX, float* out,
              ops::GradMode mode) {
  const int64_t R = dy_RX.size(0);
  const int64_t X = dy_RX.size(1);
  const int64_t partials = partial_PX.size(0);
  if (mode == ops::GradMode::kOverwrite)
    device.fill_zero(out, static_cast<size_t>(X) * sizeof(float));
  with_activation_type("linear_backward", dy_RX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const auto run = [&](auto kernel, int vector) {
      const int64_t column_blocks = divide_up(X, kLanes * vector);
      launch(device, "linear_backward_bias_kernel", kernel, partials * column_blocks, kBlock, 0,
             pointer<const T>(dy_RX), dy_RX.stride(0), pointer<float>(partial_PX), R, X,
             divide_up(R, partials), column_blocks);
    };
    if (X % kFull == 0 && is_aligned(dy_RX, 16)) {
      run(linear_backward_bias_kernel<T, kFull>, kFull);
    } else {
      run(linear_backward_bias_kernel<T, 1>, 1);
    }
  });
  add_partial_rows(device, partial_PX, out);
}

void round_to_bf16(CudaDevice& device, const float* x, void* y, int64_t size) {
  launch(device, "linear_forward_bias_kernel", linear_forward_bias_kernel, divide_up(size, kBlock),
         kBlock, 0, x, static_cast<__nv_bfloat16*>(y), size);
}

}  // namespace deltatrain::backend::cuda
