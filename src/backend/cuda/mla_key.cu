// Keys of multi-head latent attention: joining the parts, and summing the shared part's gradient.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 256;

// Grid: one thread per vector of k. N: width of the own part, K: of both, in elements.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    mla_key_forward_kernel(const T* nope, int64_t nope_row, int64_t nope_head, const T* rope,
                           int64_t rope_row, T* k, int64_t num_vectors, int64_t N, int64_t K,
                           Divider vectors_per_head, Divider heads) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= num_vectors) return;
  const int64_t unit = vectors_per_head.divide(static_cast<uint32_t>(index));
  const int64_t column = (index - unit * vectors_per_head.divisor) * kVector;
  const int64_t row = heads.divide(static_cast<uint32_t>(unit));
  const int64_t head = unit - row * heads.divisor;
  const T* from = column < N ? nope + row * nope_row + head * nope_head + column
                             : rope + row * rope_row + (column - N);
  store_pack(k + unit * K + column, load_pack<T, kVector>(from));
}

// Grid: one thread per row and vector of a head; it takes all heads in order.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    mla_key_backward_kernel(const T* __restrict__ dk, T* __restrict__ dnope, int64_t nope_row,
                            int64_t nope_head, T* __restrict__ drope, int64_t rope_row,
                            int64_t num_threads, int64_t H, int64_t N, int64_t K,
                            Divider vectors_per_head) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= num_threads) return;
  const int64_t row = vectors_per_head.divide(static_cast<uint32_t>(index));
  const int64_t column = (index - row * vectors_per_head.divisor) * kVector;
  const T* from = dk + row * H * K + column;
  if (column < N) {
#pragma unroll 4
    for (int64_t h = 0; h < H; ++h) {
      store_pack(dnope + row * nope_row + h * nope_head + column,
                 load_pack<T, kVector>(from + h * K));
    }
    return;
  }
  float sum[kVector] = {};
#pragma unroll 4
  for (int64_t h = 0; h < H; ++h) {
    float v[kVector];
    load_values(from + h * K, v);
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum[e] += v[e];
  }
  store_values(drope + row * rope_row + (column - N), sum);
}

}  // namespace

void mla_key_forward(const Context& context, const ops::MlaKeyForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.k_RHK.size(0);
  const int64_t H = args.k_RHK.size(1);
  const int64_t K = args.k_RHK.size(2);
  const int64_t N = args.k_nope_RHX.size(2);
  with_activation_type("mla_key_forward", args.k_RHK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const auto run = [&](auto kernel, int vector) {
      const int64_t num_vectors = R * H * (K / vector);
      DELTATRAIN_CHECK(num_vectors <= INT_MAX, std::to_string(num_vectors));
      launch(device, "mla_key_forward_kernel", kernel, divide_up(num_vectors, kBlock), kBlock, 0,
             pointer<const T>(args.k_nope_RHX), args.k_nope_RHX.stride(0),
             args.k_nope_RHX.stride(1), pointer<const T>(args.k_rope_RX), args.k_rope_RX.stride(0),
             pointer<T>(args.k_RHK), num_vectors, N, K, Divider(K / vector), Divider(H));
    };
    if (N % kFull == 0 && K % kFull == 0 &&
        all_aligned(args.k_nope_RHX, args.k_rope_RX, args.k_RHK)) {
      run(mla_key_forward_kernel<T, kFull>, kFull);
    } else {
      run(mla_key_forward_kernel<T, 1>, 1);
    }
  });
}

void mla_key_backward(const Context& context, const ops::MlaKeyBackward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.dk_RHK.size(0);
  const int64_t H = args.dk_RHK.size(1);
  const int64_t K = args.dk_RHK.size(2);
  const int64_t N = args.dk_nope_RHX.size(2);
  with_activation_type("mla_key_backward", args.dk_RHK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const auto run = [&](auto kernel, int vector) {
      const int64_t num_threads = R * (K / vector);
      DELTATRAIN_CHECK(num_threads <= INT_MAX, std::to_string(num_threads));
      launch(device, "mla_key_backward_kernel", kernel, divide_up(num_threads, kBlock), kBlock, 0,
             pointer<const T>(args.dk_RHK), pointer<T>(args.dk_nope_RHX),
             args.dk_nope_RHX.stride(0), args.dk_nope_RHX.stride(1), pointer<T>(args.dk_rope_RX),
             args.dk_rope_RX.stride(0), num_threads, H, N, K, Divider(K / vector));
    };
    if (N % kFull == 0 && K % kFull == 0 &&
        all_aligned(args.dk_nope_RHX, args.dk_rope_RX, args.dk_RHK)) {
      run(mla_key_backward_kernel<T, kFull>, kFull);
    } else {
      run(mla_key_backward_kernel<T, 1>, 1);
    }
  });
}

}  // namespace deltatrain::backend::cuda
