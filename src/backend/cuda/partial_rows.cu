#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kRowGroups = 1024 / kWarpSize;

// Grid: columns / kWarpSize blocks of kWarpSize x kRowGroups threads. A block owns kWarpSize
// columns; row group i adds rows i, i + kRowGroups, ... and the groups are then added in order.
__global__ void __launch_bounds__(kWarpSize* kRowGroups)
    partial_rows_add_kernel(const float* partial, int64_t rows, int64_t columns, float* out) {
  __shared__ float s_sum[kRowGroups][kWarpSize + 1];
  const int lane = lane_id();
  const int group = warp_id();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpSize + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t row = group; row < rows; row += kRowGroups) sum += partial[row * columns + column];
  }
  s_sum[group][lane] = sum;
  __syncthreads();
  if (group == 0 && column < columns) {
    float total = 0;
    for (int i = 0; i < kRowGroups; ++i) total += s_sum[i][lane];
    out[column] += total;
  }
}

}  // namespace

void add_partial_rows(CudaDevice& device, const Tensor& partial_PX, float* out) {
  const int64_t rows = partial_PX.size(0);
  const int64_t columns = partial_PX.num_elements() / rows;
  launch(device, "partial_rows_add_kernel", partial_rows_add_kernel, divide_up(columns, kWarpSize),
         kWarpSize * kRowGroups, 0, pointer<const float>(partial_PX), rows, columns, out);
}

}  // namespace deltatrain::backend::cuda
