// Products of few rows, as when decoding: bound by reading the weights once.
#pragma once

#include "backend/cuda/cuda_device.h"
#include "ops/linear.h"

namespace deltatrain::backend::cuda {

// y = x W^T + bias for bf16 operands. False, with nothing done, where there are more than
// kMaxLinearRows rows (kMaxUniformRows on a device whose products are to have the same bits whatever
// the batch: the library is faster there, and is not) or the operands do not allow accesses of 16
// bytes.
//
// An element of y is summed in an order that depends on D alone: a row's result has the same bits
// whatever rows stand beside it and however many they are.
inline constexpr int64_t kMaxLinearRows = 64;
inline constexpr int64_t kMaxUniformRows = 256;
bool linear_rows(CudaDevice& device, const ops::LinearForward& args);

}  // namespace deltatrain::backend::cuda
