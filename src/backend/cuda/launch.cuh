// What every .cu file needs around its kernels: launches, element types, alignment, partial sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <climits>
#include <cstdint>
#include <string>

#include "backend/cuda/alignment.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/kernel_launch.cuh"
#include "base/check.h"
#include "tensor/tensor.h"

namespace deltatrain::backend::cuda {

template <class T>
struct ElementType {
  using type = T;
};

// Calls function(ElementType<__nv_bfloat16 or float>{}).
template <class Function>
void with_activation_type(const char* op, DType dtype, Function function) {
  switch (dtype) {
    case DType::kBF16:
      return function(ElementType<__nv_bfloat16>{});
    case DType::kF32:
      return function(ElementType<float>{});
    default:
      throw UnsupportedError(error_text(op, "backend cuda", "bf16 or f32", dtype_name(dtype)));
  }
}

template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

// Division by a number known at launch, for 0 <= n < 2^31: one multiplication and one shift.
struct Divider {
  uint32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(narrow<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

// Gradients of shared parameters: blocks leave partial sums in rows, which one more launch adds up
// in order: out[x] += sum_p partial[p, x] for x < columns.
void add_partial_rows(CudaDevice& device, const Tensor& partial_PX, float* out);

}  // namespace deltatrain::backend::cuda
