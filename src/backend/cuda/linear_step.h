// Products of up to 16 rows with what stands around them in a step: bound by reading the weights once, and by how soon
// that begins.
#pragma once

#include "backend/cuda/cuda_device.h"
#include "ops/linear.h"

namespace deltatrain::backend::cuda {

// y = x W^T + bias as linear_rows gives it, to the bit. False, with nothing done, where there are more
// rows, x does not fit shared memory, or the operands do not allow accesses of 16 bytes.
bool linear_step(CudaDevice& device, const ops::LinearForward& args);

}  // namespace deltatrain::backend::cuda
