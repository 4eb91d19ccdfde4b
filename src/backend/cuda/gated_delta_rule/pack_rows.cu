// Rows of bf16 elements copied one by one: for values whose addresses do not allow accesses of 16
// bytes.
#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

constexpr int kThreads = 256;

// Grid: one thread per element.
__global__ void __launch_bounds__(kThreads)
    gated_delta_rule_copy_rows_kernel(Bf16* to, int64_t to_stride, const Bf16* from,
                                      int64_t from_stride, int64_t rows, int64_t width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * width) return;
  to[i / width * to_stride + i % width] = from[i / width * from_stride + i % width];
}

}  // namespace

void copy_rows(CudaDevice& device, Bf16* to, int64_t to_stride, const Bf16* from,
               int64_t from_stride, int64_t rows, int64_t width) {
  launch(device, "gated_delta_rule_copy_rows_kernel", gated_delta_rule_copy_rows_kernel,
         divide_up(rows * width, kThreads), kThreads, 0, to, to_stride, from, from_stride, rows,
         width);
}

}  // namespace deltatrain::backend::cuda::delta
