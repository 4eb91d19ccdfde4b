// Scalar functions of the kernels. With T = float they are exact to a few units in the last place;
// with bf16 storage the fast instructions do, whose error is far below the rounding of the result.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

namespace deltatrain::backend::cuda {

// exp(x)
template <class T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// 1 / (1 + exp(-x)); 0 and 1 at the ends, never NaN for a number.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0F / (1.0F + expf(-x));
  } else {
    return __fdividef(1.0F, 1.0F + __expf(-x));
  }
}

}  // namespace deltatrain::backend::cuda
