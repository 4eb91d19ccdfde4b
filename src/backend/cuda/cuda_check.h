// Every call of the CUDA runtime and of cuBLASLt goes through these checks, which keep the
// library's own text.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "base/error.h"

namespace deltatrain::backend::cuda {

// Throws DeviceError "cuda: CALL: TEXT" where `status` is an error; clears errors that do not
// stick.
void check_cuda(cudaError_t status, const char* call);
void check_cublas(cublasStatus_t status, const char* call);

// DeviceError unless a block of the current device can have that much shared memory.
void expect_shared_bytes(size_t bytes);

#define DELTATRAIN_CUDA_CALL(call) ::deltatrain::backend::cuda::check_cuda((call), #call)

}  // namespace deltatrain::backend::cuda
