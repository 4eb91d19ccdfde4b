#include "backend/cuda/device_random.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::test {

namespace {

namespace cuda = backend::cuda;
constexpr int kBlock = 256;

__device__ uint64_t mixed_bits(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ULL + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The sum of four uniform numbers: variance 1/3, scaled to 1.
__device__ float normal_like(uint64_t bits) {
  float sum = 0;
  for (int i = 0; i < 4; ++i)
    sum += static_cast<float>((bits >> (16 * i)) & 0xffffU) * (1.0F / 65536.0F);
  return (sum - 2.0F) * 1.7320508F;
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    fill_normal_kernel(T* data, int64_t n, float deviation, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < n)
    data[i] =
        cuda::from_float<T>(deviation * normal_like(mixed_bits(seed, static_cast<uint64_t>(i))));
}

__global__ void __launch_bounds__(kBlock)
    fill_ids_kernel(int32_t* ids, int64_t n, double bound, double power, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= n) return;
  const double u = static_cast<double>(mixed_bits(seed, static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
  ids[i] = static_cast<int32_t>(bound * pow(u, power));
}

__global__ void __launch_bounds__(kBlock)
    fill_uniform_kernel(float* data, int64_t n, float low, float high, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < n)
    data[i] =
        low + (high - low) *
                  (static_cast<float>(mixed_bits(seed, static_cast<uint64_t>(i)) >> 40) * 0x1p-24F);
}

int64_t span_of(const Tensor& tensor) {
  int64_t last = 0;
  for (int axis = 0; axis < tensor.rank(); ++axis)
    last += (tensor.size(axis) - 1) * tensor.stride(axis);
  return tensor.num_elements() == 0 ? 0 : last + 1;
}

}  // namespace

void fill_normal(const Context& context, const Tensor& tensor, double deviation, uint64_t seed) {
  cuda::with_activation_type("fill_normal", tensor.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const int64_t n = span_of(tensor);
    cuda::launch(cuda::cuda_device(context), "fill_normal_kernel", fill_normal_kernel<T>,
                 divide_up(n, kBlock), kBlock, 0, cuda::pointer<T>(tensor), n,
                 static_cast<float>(deviation), seed);
  });
}

void fill_ids(const Context& context, const Tensor& ids, int64_t bound, double power,
              uint64_t seed) {
  const int64_t n = ids.num_elements();
  cuda::launch(cuda::cuda_device(context), "fill_ids_kernel", fill_ids_kernel, divide_up(n, kBlock),
               kBlock, 0, cuda::pointer<int32_t>(ids), n, static_cast<double>(bound), power, seed);
}

void fill_uniform(const Context& context, const Tensor& tensor, double low, double high,
                  uint64_t seed) {
  const int64_t n = span_of(tensor);
  cuda::launch(cuda::cuda_device(context), "fill_uniform_kernel", fill_uniform_kernel,
               divide_up(n, kBlock), kBlock, 0, cuda::pointer<float>(tensor), n,
               static_cast<float>(low), static_cast<float>(high), seed);
}

}  // namespace deltatrain::test
