// Descriptions of matrices in device memory for bulk copies of boxes of them.
#pragma once

#include <cuda.h>

#include "tensor/tensor.h"

namespace deltatrain::backend::cuda {

// Boxes of `box_rows` rows (at most 256) of 64 columns of a bf16 matrix whose rows are contiguous, 16-byte aligned and a
// multiple of 16 bytes long; in shared memory as group products want their tiles (ptx_wrappers.cuh). What lies outside
// the matrix arrives as zeros. DeviceError where the driver has no such descriptions.
CUtensorMap describe_boxes(const Tensor& matrix, int box_rows);

}  // namespace deltatrain::backend::cuda
