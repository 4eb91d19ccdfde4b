// Kernels that need what only compute capability 9.0 and later has: clusters of blocks that read
// each other's shared memory. Each has a portable sibling in the folder above, which the caller
// takes where a function here returns false.
#pragma once

#include "ops/cross_entropy.h"

namespace deltatrain::backend::cuda {

class CudaDevice;

// A row of logits held on chip by a cluster: one read, one write. False, with nothing done, unless
// the device is capable and the logits are bf16 with 16-byte aligned rows of at most 131,072
// columns.
bool cross_entropy_cluster(CudaDevice& device, const ops::CrossEntropy& args);

}  // namespace deltatrain::backend::cuda
