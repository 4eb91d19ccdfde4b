// Small ops between the large ones.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/largest.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 256;
constexpr int kSumThreads = 1024;

// Grid: one block per row. y may lie over a or b.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    add_kernel(const T* a, int64_t a_stride, const T* b, int64_t b_stride, T* y, int64_t y_stride,
               int64_t D) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < D / kVector; i += kBlock) {
    float left[kVector];
    float right[kVector];
    load_values<T, kVector, Reuse::kStreaming>(a + row * a_stride + i * kVector, left);
    load_values<T, kVector, Reuse::kStreaming>(b + row * b_stride + i * kVector, right);
#pragma unroll
    for (int e = 0; e < kVector; ++e) left[e] += right[e];
    store_values(y + row * y_stride + i * kVector, left);
  }
}

// One element in any of the three types; between f64 and bf16 by way of f32 only where that rounds
// once.
__device__ __forceinline__ double as_double(double x) { return x; }
__device__ __forceinline__ double as_double(float x) { return x; }
__device__ __forceinline__ double as_double(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class To>
__device__ __forceinline__ To from_double(double x);
template <>
__device__ __forceinline__ double from_double<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ float from_double<float>(double x) {
  return __double2float_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_double<__nv_bfloat16>(double x) {
  return __double2bfloat16(x);
}

// Grid: one thread per element.
template <class From, class To>
__global__ void __launch_bounds__(kBlock)
    convert_kernel(const From* x, To* y, int64_t num_elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < num_elements) y[i] = from_double<To>(as_double(x[i]));
}

// Grid: one thread per four elements, between f32 and bf16.
template <class From, class To>
__global__ void __launch_bounds__(kBlock)
    convert_vectors_kernel(const From* x, To* y, int64_t num_vectors) {
  constexpr int kVector = 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= num_vectors) return;
  float v[kVector];
  load_values<From, kVector, Reuse::kStreaming>(x + i * kVector, v);
  store_values(y + i * kVector, v);
}

template <class Function>
void with_float_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::kF64:
      return function(ElementType<double>{});
    case DType::kF32:
      return function(ElementType<float>{});
    case DType::kBF16:
      return function(ElementType<__nv_bfloat16>{});
    default:
      throw UnsupportedError(
          error_text("convert", "backend cuda", "f64, f32 or bf16", dtype_name(dtype)));
  }
}

// Grid: one block, which adds in a fixed order.
__global__ void __launch_bounds__(kSumThreads)
    sum_to_kernel(const float* x, int64_t num_elements, double* result) {
  __shared__ double s_scratch[kSumThreads / kWarpSize];
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < num_elements; i += kSumThreads) sum += x[i];
  sum = sum_over_block<kSumThreads>(sum, s_scratch);
  if (threadIdx.x == 0) *result += sum;
}

// Grid: one block per row, which reads the row once.
template <class T, int kVector>
__global__ void __launch_bounds__(kSumThreads)
    row_argmax_kernel(const T* x, int64_t x_stride, int N, int32_t* index) {
  __shared__ Largest s_best[kSumThreads / kWarpSize];
  const T* row = x + static_cast<int64_t>(blockIdx.x) * x_stride;
  Largest best = {-INFINITY, 0};
#pragma unroll 4
  for (int n = static_cast<int>(threadIdx.x) * kVector; n < N; n += kSumThreads * kVector) {
    float values[kVector];
    load_values<T, kVector, Reuse::kStreaming>(row + n, values);
#pragma unroll
    for (int e = 0; e < kVector; ++e) best = larger(best, {values[e], n + e});
  }
  best = largest_over_block<kSumThreads>(best, s_best);
  if (threadIdx.x == 0) index[blockIdx.x] = index_or_none(best);
}

// Grid: parts of rows, the parts of a row first. Bytes: what is moved, in and out.
template <class Word>
__global__ void __launch_bounds__(kBlock)
    copy_rows_kernel(const Word* x, const int32_t* from, Word* y, const int32_t* to,
                     const int32_t* counts, int64_t row_words, int64_t item_words, int64_t parts) {
  const int64_t r = blockIdx.x / parts;
  const int64_t part = blockIdx.x - r * parts;
  const int64_t words = counts == nullptr ? row_words : counts[r] * item_words;
  const int64_t source = from[r];
  Word* const target = y + to[r] * row_words;
  for (int64_t i = part * kBlock + threadIdx.x; i < words; i += parts * kBlock)
    target[i] = source < 0 ? Word{} : x[source * row_words + i];
}

// Grid: kChecksumBlocks blocks that walk over the words. Sums of integers: no order matters. Bytes:
// the tensor, once.
constexpr int64_t kChecksumBlocks = 1056;
__global__ void __launch_bounds__(kBlock)
    checksum_kernel(const uint32_t* words, int64_t n, unsigned long long* result) {
  __shared__ unsigned long long s_scratch[kBlock / kWarpSize];
  unsigned long long sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBlock;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < n; i += step)
    sum += ops::checksum_term(static_cast<uint64_t>(i), words[i]);
  sum = sum_over_block<kBlock>(sum, s_scratch);
  if (threadIdx.x == 0) atomicAdd(result, sum);
}

}  // namespace

void checksum(const Context& context, const ops::Checksum& args) {
  const int64_t n = args.x_X.num_bytes() / 4;
  if (n == 0) return;
  launch(cuda_device(context), "checksum_kernel", checksum_kernel,
         std::min(kChecksumBlocks, divide_up(n, kBlock)), kBlock, 0, pointer<const uint32_t>(args.x_X),
         n, reinterpret_cast<unsigned long long*>(args.result));
}

void add(const Context& context, const ops::Add& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.y_RD.size(0);
  const int64_t D = args.y_RD.size(1);
  with_activation_type("add", args.y_RD.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    const bool vectors = D % kVector == 0 && all_aligned(args.a_RD, args.b_RD, args.y_RD);
    launch(device, "add_kernel", vectors ? add_kernel<T, kVector> : add_kernel<T, 1>, R, kBlock, 0,
           pointer<const T>(args.a_RD), args.a_RD.stride(0), pointer<const T>(args.b_RD),
           args.b_RD.stride(0), pointer<T>(args.y_RD), args.y_RD.stride(0), D);
  });
}

void convert(const Context& context, const ops::Convert& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t n = args.x.num_elements();
  if (args.x.dtype() == args.y.dtype()) {
    if (n > 0 && args.x.raw() != args.y.raw()) {
      device.copy_on_device(args.y.raw(), args.x.raw(), static_cast<size_t>(args.x.num_bytes()));
    }
    return;
  }
  const bool vectors = n % 4 == 0 && all_aligned(args.x, args.y);
  using Bf16 = __nv_bfloat16;
  if (vectors && args.x.dtype() == DType::kF32 && args.y.dtype() == DType::kBF16) {
    launch(device, "convert_vectors_kernel", convert_vectors_kernel<float, Bf16>,
           divide_up(n / 4, kBlock), kBlock, 0, pointer<const float>(args.x), pointer<Bf16>(args.y),
           n / 4);
    return;
  }
  if (vectors && args.x.dtype() == DType::kBF16 && args.y.dtype() == DType::kF32) {
    launch(device, "convert_vectors_kernel", convert_vectors_kernel<Bf16, float>,
           divide_up(n / 4, kBlock), kBlock, 0, pointer<const Bf16>(args.x), pointer<float>(args.y),
           n / 4);
    return;
  }
  with_float_type(args.x.dtype(), [&](auto from) {
    with_float_type(args.y.dtype(), [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      launch(device, "convert_kernel", convert_kernel<From, To>, divide_up(n, kBlock), kBlock, 0,
             pointer<const From>(args.x), pointer<To>(args.y), n);
    });
  });
}

void sum_to(const Context& context, const ops::SumTo& args) {
  CudaDevice& device = cuda_device(context);
  if (args.x_R.dtype() != DType::kF32) {
    throw UnsupportedError(
        error_text("sum_to", "backend cuda", "f32", dtype_name(args.x_R.dtype())));
  }
  launch(device, "sum_to_kernel", sum_to_kernel, 1, kSumThreads, 0, pointer<const float>(args.x_R),
         args.x_R.num_elements(), args.result);
}

void row_argmax(const Context& context, const ops::RowArgmax& args) {
  CudaDevice& device = cuda_device(context);
  const int N = narrow<int>(args.x_RN.size(1));
  with_activation_type("row_argmax", args.x_RN.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    const bool vectors = N % kVector == 0 && all_aligned(args.x_RN);
    launch(device, "row_argmax_kernel",
           vectors ? row_argmax_kernel<T, kVector> : row_argmax_kernel<T, 1>, args.x_RN.size(0),
           kSumThreads, 0, pointer<const T>(args.x_RN), args.x_RN.stride(0), N,
           pointer<int32_t>(args.index_R));
  });
}

void copy_rows(const Context& context, const ops::CopyRows& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.from_R.size(0);
  if (R == 0) return;
  const int64_t row_bytes = args.x_X.rows(0, 1).num_bytes();
  const int64_t item_bytes = args.counts_R.defined() ? row_bytes / args.x_X.size(1) : row_bytes;
  if (row_bytes == 0) return;
  // Enough blocks for a few rows to be moved at the device's rate, each moving a few KiB at least.
  constexpr int64_t kPartBytes = 16384;
  constexpr int64_t kMaxParts = 64;
  const int64_t parts = std::min(kMaxParts, divide_up(row_bytes, kPartBytes));
  const auto run = [&](auto word) {
    using Word = decltype(word);
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
    launch(device, "copy_rows_kernel", copy_rows_kernel<Word>, R * parts, kBlock, 0,
           pointer<const Word>(args.x_X), pointer<const int32_t>(args.from_R),
           pointer<Word>(args.y_X), pointer<const int32_t>(args.to_R),
           pointer<const int32_t>(args.counts_R), row_bytes / kBytes, item_bytes / kBytes, parts);
  };
  const uint64_t places = reinterpret_cast<uintptr_t>(args.x_X.raw()) |
                          reinterpret_cast<uintptr_t>(args.y_X.raw()) |
                          static_cast<uint64_t>(item_bytes);
  if (places % 16 == 0) return run(uint4{});
  if (places % 4 == 0) return run(uint32_t{});
  run(static_cast<unsigned char>(0));
}

}  // namespace deltatrain::backend::cuda
