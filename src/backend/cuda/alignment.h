// Whether tensors allow wide accesses.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace deltatrain::backend::cuda {

// An undefined tensor is fine: it is not accessed.
inline bool is_aligned(const Tensor& tensor, int64_t bytes) {
  if (!tensor.defined()) return true;
  if (reinterpret_cast<uintptr_t>(tensor.raw()) % static_cast<uint64_t>(bytes) != 0) return false;
  for (int axis = 0; axis + 1 < tensor.rank(); ++axis) {
    if (tensor.size(axis) > 1 && tensor.stride(axis) * dtype_bytes(tensor.dtype()) % bytes != 0)
      return false;
  }
  return true;
}

// Every tensor's address and strides allow accesses of 16 bytes.
template <class... Tensors>
bool all_aligned(const Tensors&... tensors) {
  return (is_aligned(tensors, 16) && ...);
}

}  // namespace deltatrain::backend::cuda
