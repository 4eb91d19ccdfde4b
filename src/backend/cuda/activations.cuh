// Scalar functions of the kernels. With T = float they are exact to a few units in the last place;
// with bf16 storage the fast instructions do, whose error is far below the rounding of the result.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "backend/cuda/ptx_wrappers.cuh"

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
    // Exponentials below the normal range are lost beside the 1 anyway.
    constexpr float kLog2e = 1.4426950408889634F;
    return __fdividef(1.0F, 1.0F + exp2_approximate(x * -kLog2e));
  }
}

// gate sigmoid(gate) up
template <class T>
__device__ __forceinline__ float swiglu(float gate, float up) {
  return gate * (sigmoid<T>(gate) * up);
}

// The gradients of swiglu(gate, up), and its value once more.
struct SwigluGradient {
  float gate;
  float up;
  float y;
};
template <class T>
__device__ __forceinline__ SwigluGradient swiglu_gradient(float dy, float gate, float up) {
  const float s = sigmoid<T>(gate);
  const float activated = gate * s;
  return {dy * up * s * (1.0F + gate * (1.0F - s)), dy * activated, activated * up};
}

}  // namespace deltatrain::backend::cuda
