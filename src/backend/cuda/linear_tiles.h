// Products of some hundred rows that have the bits of linear_rows.
#pragma once

#include "backend/cuda/cuda_device.h"
#include "ops/linear.h"

namespace deltatrain::backend::cuda {

// y = x W^T + bias for bf16 operands that linear_rows takes, to the bit what it gives.
void linear_tiles(CudaDevice& device, const ops::LinearForward& args);

}  // namespace deltatrain::backend::cuda
