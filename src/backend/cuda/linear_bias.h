// The parts of a linear layer that are not products.
#pragma once

#include "backend/cuda/cuda_device.h"
#include "ops/linear.h"

namespace deltatrain::backend::cuda {

// Rows of partial sums that sum_rows needs for R rows.
int64_t num_row_sum_partials(int64_t R);

// out[x] = sum_r dy[r, x], or += as `mode` says. dy: bf16 or f32, rows may be strided. partial_PX:
// f32 scratch of num_row_sum_partials(R) rows. A fixed order.
void sum_rows(CudaDevice& device, const Tensor& dy_RX, const Tensor& partial_PX, float* out,
              ops::GradMode mode);

// y = bf16(x), both of `size` elements.
void round_to_bf16(CudaDevice& device, const float* x, void* y, int64_t size);

}  // namespace deltatrain::backend::cuda
