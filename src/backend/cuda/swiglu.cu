// SwiGLU: one pass over each tensor, the activation made again by backward.
#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 256;
constexpr int kHeld = 2;  // vectors of each tensor that a thread loads before it uses the first

// Grid: one block per row. Bytes per row: gate, up and y of F elements, once.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock) swiglu_forward_kernel(const T* gate_up, T* y, int64_t F) {
  const int64_t row = blockIdx.x;
  const T* gate = gate_up + row * 2 * F;
  const T* up = gate + F;
  const int64_t num_vectors = F / kVector;
  for (int64_t base = threadIdx.x; base < num_vectors; base += kBlock * kHeld) {
    Pack<T, kVector> in_gate[kHeld];
    Pack<T, kVector> in_up[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int64_t i = base + j * kBlock;
      if (i >= num_vectors) continue;
      in_gate[j] = load_pack<T, kVector, Reuse::kStreaming>(gate + i * kVector);
      in_up[j] = load_pack<T, kVector, Reuse::kStreaming>(up + i * kVector);
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int64_t i = base + j * kBlock;
      if (i >= num_vectors) continue;
      float g[kVector];
      float u[kVector];
      in_gate[j].unpack(g);
      in_up[j].unpack(u);
#pragma unroll
      for (int e = 0; e < kVector; ++e) g[e] = swiglu<T>(g[e], u[e]);
      store_values(y + row * F + i * kVector, g);
    }
  }
}

// Grid: one block per row. Bytes per row: dy, gate, up, dgate, dup, y of F elements, once. dgate_up
// may lie over gate_up: a thread writes only what it has read.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    swiglu_backward_kernel(const T* dy, const T* gate_up, T* dgate_up, T* y, int64_t F) {
  const int64_t row = blockIdx.x;
  const T* gate = gate_up + row * 2 * F;
  const T* up = gate + F;
  const int64_t num_vectors = F / kVector;
  for (int64_t base = threadIdx.x; base < num_vectors; base += kBlock * kHeld) {
    Pack<T, kVector> in_gate[kHeld];
    Pack<T, kVector> in_up[kHeld];
    Pack<T, kVector> in_dy[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int64_t i = base + j * kBlock;
      if (i >= num_vectors) continue;
      in_gate[j] = load_pack<T, kVector, Reuse::kStreaming>(gate + i * kVector);
      in_up[j] = load_pack<T, kVector, Reuse::kStreaming>(up + i * kVector);
      in_dy[j] = load_pack<T, kVector, Reuse::kStreaming>(dy + row * F + i * kVector);
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int64_t i = base + j * kBlock;
      if (i >= num_vectors) continue;
      float g[kVector];
      float u[kVector];
      float d[kVector];
      float out[kVector];
      in_gate[j].unpack(g);
      in_up[j].unpack(u);
      in_dy[j].unpack(d);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const SwigluGradient gradient = swiglu_gradient<T>(d[e], g[e], u[e]);
        g[e] = gradient.gate;
        u[e] = gradient.up;
        out[e] = gradient.y;
      }
      T* target = dgate_up + row * 2 * F + i * kVector;
      store_values(target, g);
      store_values(target + F, u);
      if (y != nullptr) store_values(y + row * F + i * kVector, out);
    }
  }
}

template <class T>
constexpr int kFullVector = 16 / static_cast<int>(sizeof(T));

}  // namespace

void swiglu_forward(const Context& context, const ops::SwigluForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.y_RF.size(0);
  const int64_t F = args.y_RF.size(1);
  with_activation_type("swiglu_forward", args.y_RF.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const bool vectors = F % kFullVector<T> == 0 && all_aligned(args.gate_up_RX, args.y_RF);
    launch(device, "swiglu_forward_kernel",
           vectors ? swiglu_forward_kernel<T, kFullVector<T>> : swiglu_forward_kernel<T, 1>, R,
           kBlock, 0, pointer<const T>(args.gate_up_RX), pointer<T>(args.y_RF), F);
  });
}

void swiglu_backward(const Context& context, const ops::SwigluBackward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.dy_RF.size(0);
  const int64_t F = args.dy_RF.size(1);
  with_activation_type("swiglu_backward", args.dy_RF.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const bool vectors = F % kFullVector<T> == 0 &&
                         all_aligned(args.dy_RF, args.gate_up_RX, args.dgate_up_RX, args.y_RF);
    launch(device, "swiglu_backward_kernel",
           vectors ? swiglu_backward_kernel<T, kFullVector<T>> : swiglu_backward_kernel<T, 1>, R,
           kBlock, 0, pointer<const T>(args.dy_RF), pointer<const T>(args.gate_up_RX),
           pointer<T>(args.dgate_up_RX), pointer<T>(args.y_RF), F);
  });
}

}  // namespace deltatrain::backend::cuda
