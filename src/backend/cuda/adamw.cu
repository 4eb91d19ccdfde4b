// The optimizer's pass. Everything that changes from step to step is read from device memory, sums
// are f64 in an order that depends on the number of elements alone.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

using ops::StepScalars;
constexpr int kVector = 4;
constexpr int kBlock = 256;
// Four blocks per multiprocessor of the cards this was measured on; fixed, so that sums have one
// order.
constexpr int64_t kNumBlocks = 528;
constexpr int kFinishThreads = 1024;

// Grid: kNumBlocks blocks that walk over the vectors; each leaves one f64. Bytes: the gradient,
// once.
template <int kElements>
__global__ void __launch_bounds__(kBlock, 4)
    sum_of_squares_partial_kernel(const float* gradient, int64_t num_vectors, double* partial) {
  __shared__ double s_scratch[kBlock / kWarpSize];
  double sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBlock;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < num_vectors;
       i += step) {
    float g[kElements];
    load_values<float, kElements, Reuse::kStreaming>(gradient + i * kElements, g);
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum += static_cast<double>(g[e]) * g[e];
  }
  sum = sum_over_block<kBlock>(sum, s_scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Grid: one block. Adds the partial sums and the elements that fill no vector.
__global__ void __launch_bounds__(kFinishThreads)
    sum_of_squares_finish_kernel(const double* partial, int64_t num_partials, const float* rest,
                                 int64_t num_rest, ops::GradMode mode, StepScalars* scalars) {
  __shared__ double s_scratch[kFinishThreads / kWarpSize];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < num_partials; i += kFinishThreads) sum += partial[i];
  for (int64_t i = threadIdx.x; i < num_rest; i += kFinishThreads)
    sum += static_cast<double>(rest[i]) * rest[i];
  sum = sum_over_block<kFinishThreads>(sum, s_scratch);
  if (threadIdx.x == 0) {
    scalars->sum_of_squares =
        mode == ops::GradMode::kAccumulate ? scalars->sum_of_squares + sum : sum;
  }
}

// Grid: one thread. loss_sum may be null.
__global__ void gradient_norm_finish_kernel(StepScalars* scalars, const double* loss_sum) {
  const double norm = sqrt(scalars->sum_of_squares);
  scalars->gradient_norm = norm;
  double factor = 1;
  if (scalars->clip_grad > 0) factor = fmin(1.0, scalars->clip_grad / (norm + 1e-6));
  scalars->clip_factor = factor;
  if (!isfinite(norm) || (loss_sum != nullptr && !isfinite(*loss_sum))) scalars->skipped += 1;
}

struct AdamWNumbers {
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
};

// What all elements of a step share.
struct AdamWStep {
  float clip_factor;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float inv_correction1;       // 1 / (1 - beta1^step)
  float inv_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float learning_rate;
  float weight_decay;
};

__device__ __forceinline__ void update_element(const AdamWStep& s, float decays, float g, float& p,
                                               float& m, float& v) {
  g *= s.clip_factor;
  m = s.beta1 * m + s.one_minus_beta1 * g;
  v = s.beta2 * v + s.one_minus_beta2 * (g * g);
  const float update =
      __fdiv_rn(m * s.inv_correction1, __fsqrt_rn(v) * s.inv_sqrt_correction2 + s.eps);
  p -= s.learning_rate * (update + decays * s.weight_decay * p);
}

// Grid: kNumBlocks blocks that walk over the vectors. Bytes per element: 16 read, 12 written and
// 2 of the bf16 copy.
template <int kElements>
__global__ void __launch_bounds__(kBlock, 4)
    adamw_kernel(float* parameter, __nv_bfloat16* compute, const float* gradient, float* m,
                 float* v, const uint8_t* decays, const StepScalars* scalars, AdamWNumbers numbers,
                 int64_t first, int64_t end) {
  __shared__ AdamWStep s_step;
  __shared__ bool s_finite;
  if (threadIdx.x == 0) {
    s_finite = isfinite(scalars->gradient_norm) && scalars->skipped == 0;
    s_step.clip_factor = static_cast<float>(scalars->clip_factor);
    s_step.beta1 = static_cast<float>(numbers.beta1);
    s_step.beta2 = static_cast<float>(numbers.beta2);
    s_step.one_minus_beta1 = static_cast<float>(1 - numbers.beta1);
    s_step.one_minus_beta2 = static_cast<float>(1 - numbers.beta2);
    s_step.inv_correction1 = static_cast<float>(1 / (1 - pow(numbers.beta1, scalars->step)));
    s_step.inv_sqrt_correction2 =
        static_cast<float>(1 / sqrt(1 - pow(numbers.beta2, scalars->step)));
    s_step.eps = static_cast<float>(numbers.eps);
    s_step.learning_rate = static_cast<float>(scalars->learning_rate);
    s_step.weight_decay = static_cast<float>(numbers.weight_decay);
  }
  __syncthreads();
  if (!s_finite) return;
  const AdamWStep step = s_step;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlock * kElements;
  for (int64_t i = first + (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * kElements;
       i < end; i += stride) {
    float g[kElements];
    float p[kElements];
    float r_m[kElements];
    float r_v[kElements];
    load_values<float, kElements, Reuse::kStreaming>(gradient + i, g);
    load_values<float, kElements, Reuse::kStreaming>(parameter + i, p);
    load_values<float, kElements, Reuse::kStreaming>(m + i, r_m);
    load_values<float, kElements, Reuse::kStreaming>(v + i, r_v);
    // A vector lies in one block of kDecayBlock elements.
    const float decay = decays[i / ops::kDecayBlock] != 0 ? 1.0F : 0.0F;
#pragma unroll
    for (int e = 0; e < kElements; ++e) update_element(step, decay, g[e], p[e], r_m[e], r_v[e]);
    store_values<Reuse::kStreaming>(parameter + i, p);
    store_values<Reuse::kStreaming>(m + i, r_m);
    store_values<Reuse::kStreaming>(v + i, r_v);
    if (compute != nullptr) store_values<Reuse::kStreaming>(compute + i, p);
  }
}

void expect_f32(const char* op, const Tensor& tensor) {
  if (tensor.dtype() != DType::kF32) {
    throw UnsupportedError(error_text(op, "backend cuda", "f32", dtype_name(tensor.dtype())));
  }
}

}  // namespace

void sum_of_squares(const Context& context, const ops::SumOfSquares& args) {
  expect_f32("sum_of_squares", args.gradient_X);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial = context.arena->scratch(DType::kF64, {kNumBlocks});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  const auto* gradient = pointer<const float>(args.gradient_X);
  const int64_t n = args.gradient_X.num_elements();
  const int64_t num_vectors = is_aligned(args.gradient_X, 16) ? n / kVector : 0;
  const int64_t blocks = std::min(kNumBlocks, std::max<int64_t>(1, divide_up(num_vectors, kBlock)));
  if (num_vectors > 0) {
    launch(device, "sum_of_squares_partial_kernel", sum_of_squares_partial_kernel<kVector>, blocks,
           kBlock, 0, gradient, num_vectors, pointer<double>(partial));
    launch(device, "sum_of_squares_finish_kernel", sum_of_squares_finish_kernel, 1, kFinishThreads,
           0, pointer<const double>(partial), blocks, gradient + num_vectors * kVector,
           n - num_vectors * kVector, args.mode, args.scalars);
    return;
  }
  launch(device, "sum_of_squares_partial_kernel", sum_of_squares_partial_kernel<1>, kNumBlocks,
         kBlock, 0, gradient, n, pointer<double>(partial));
  launch(device, "sum_of_squares_finish_kernel", sum_of_squares_finish_kernel, 1, kFinishThreads, 0,
         pointer<const double>(partial), kNumBlocks, gradient, int64_t{0}, args.mode, args.scalars);
}

void finish_gradient_norm(const Context& context, const ops::FinishGradientNorm& args) {
  launch(cuda_device(context), "gradient_norm_finish_kernel", gradient_norm_finish_kernel, 1, 1, 0,
         args.scalars, args.loss_sum);
}

void adamw(const Context& context, const ops::AdamW& args) {
  expect_f32("adamw", args.parameter_X);
  CudaDevice& device = cuda_device(context);
  const int64_t n = args.parameter_X.num_elements();
  const AdamWNumbers numbers{args.beta1, args.beta2, args.eps, args.weight_decay};
  const bool vectors = all_aligned(args.parameter_X, args.gradient_X, args.m_X, args.v_X) &&
                       is_aligned(args.compute_X, 8);
  const int64_t in_vectors = vectors ? n / kVector * kVector : 0;
  const auto run = [&](auto kernel, int64_t first, int64_t end, int elements) {
    const int64_t blocks = std::min(kNumBlocks, divide_up(end - first, kBlock * elements));
    launch(device, "adamw_kernel", kernel, blocks, kBlock, 0, pointer<float>(args.parameter_X),
           pointer<__nv_bfloat16>(args.compute_X), pointer<const float>(args.gradient_X),
           pointer<float>(args.m_X), pointer<float>(args.v_X),
           pointer<const uint8_t>(args.decays_X), args.scalars, numbers, first, end);
  };
  run(adamw_kernel<kVector>, 0, in_vectors, kVector);
  run(adamw_kernel<1>, in_vectors, n, 1);
}

}  // namespace deltatrain::backend::cuda
