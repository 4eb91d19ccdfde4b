// Rotary position embedding. Angles are double; the sine and cosine of each are computed once for
// all heads of a row.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/sequences.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 256;
constexpr int kHeadsAtOnce =
    4;  // heads that a thread turns, all loaded before the first is written

// Grid: one thread per row and pair of channels. cosines, sines: [R, half].
__global__ void __launch_bounds__(kBlock)
    rotary_angles_kernel(const int32_t* offsets, int num_sequences, const int32_t* start_positions,
                         float* cosines, float* sines, int64_t R, int64_t half,
                         Divider half_divider, double theta, double direction) {
  double* const s_frequency = dynamic_shared<double>();  // of each pair
  for (int64_t i = threadIdx.x; i < half; i += kBlock) {
    s_frequency[i] = pow(theta, -static_cast<double>(i) / static_cast<double>(half));
  }
  __syncthreads();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= R * half) return;
  const int64_t row = half_divider.divide(static_cast<uint32_t>(index));
  const int s = find_sequence(offsets, num_sequences, row);
  int64_t position = row - offsets[s];
  if (start_positions != nullptr) position += start_positions[s];
  double sine;
  double cosine;
  sincos(static_cast<double>(position) * s_frequency[index - row * half], &sine, &cosine);
  cosines[index] = static_cast<float>(cosine);
  sines[index] = static_cast<float>(direction * sine);
}

struct HeadStrides {
  int64_t row;
  int64_t head;
};

// Grid: one thread per row, kHeadsAtOnce heads and kVector pairs of channels. x and y may be the
// same.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    rotary_kernel(const T* x, HeadStrides x_stride, T* y, HeadStrides y_stride,
                  const float* cosines, const float* sines, int64_t num_threads, int H,
                  int64_t half, Divider vectors, Divider head_groups) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= num_threads) return;
  const int64_t rest = vectors.divide(static_cast<uint32_t>(index));
  const int64_t i = (index - rest * vectors.divisor) * kVector;
  const int64_t row = head_groups.divide(static_cast<uint32_t>(rest));
  const int first_head = static_cast<int>(rest - row * head_groups.divisor) * kHeadsAtOnce;
  Pack<T, kVector> low[kHeadsAtOnce];
  Pack<T, kVector> high[kHeadsAtOnce];
#pragma unroll
  for (int j = 0; j < kHeadsAtOnce; ++j) {
    low[j].set_zero();
    high[j].set_zero();
    if (first_head + j < H) {
      const T* from = x + row * x_stride.row + (first_head + j) * x_stride.head + i;
      low[j] = load_pack<T, kVector>(from);
      high[j] = load_pack<T, kVector>(from + half);
    }
  }
  float c[kVector];
  float s[kVector];
  load_values(cosines + row * half + i, c);
  load_values(sines + row * half + i, s);
#pragma unroll
  for (int j = 0; j < kHeadsAtOnce; ++j) {
    if (first_head + j >= H) continue;
    float a[kVector];
    float b[kVector];
    low[j].unpack(a);
    high[j].unpack(b);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float turned = a[e] * c[e] - b[e] * s[e];
      b[e] = b[e] * c[e] + a[e] * s[e];
      a[e] = turned;
    }
    T* to = y + row * y_stride.row + (first_head + j) * y_stride.head + i;
    store_values(to, a);
    store_values(to + half, b);
  }
}

}  // namespace

void rotary(const Context& context, const ops::Rotary& args) {
  const int64_t R = args.x_RHX.size(0);
  const int64_t H = args.x_RHX.size(1);
  const int64_t half = args.x_RHX.size(2) / 2;
  const Arena::ScratchScope scope(*context.arena);
  const Tensor cosines = context.arena->scratch(DType::kF32, {R, half});
  const Tensor sines = context.arena->scratch(DType::kF32, {R, half});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  DELTATRAIN_CHECK(R * half <= INT_MAX, std::to_string(R * half));
  if (half == 0) return;
  launch(device, "rotary_angles_kernel", rotary_angles_kernel, divide_up(R * half, kBlock), kBlock,
         static_cast<size_t>(half) * sizeof(double),
         pointer<const int32_t>(args.sequences.device_offsets), narrow<int>(args.sequences.num()),
         pointer<const int32_t>(args.start_positions_S), pointer<float>(cosines),
         pointer<float>(sines), R, half, Divider(half), args.theta,
         args.direction == ops::RotaryDirection::kForward ? 1.0 : -1.0);
  with_activation_type("rotary", args.x_RHX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const auto run = [&](auto kernel, int vector) {
      const int64_t vectors = half / vector;
      const int64_t head_groups = divide_up(H, kHeadsAtOnce);
      const int64_t num_threads = R * head_groups * vectors;
      DELTATRAIN_CHECK(num_threads <= INT_MAX, std::to_string(num_threads));
      launch(device, "rotary_kernel", kernel, divide_up(num_threads, kBlock), kBlock, 0,
             pointer<const T>(args.x_RHX), HeadStrides{args.x_RHX.stride(0), args.x_RHX.stride(1)},
             pointer<T>(args.y_RHX), HeadStrides{args.y_RHX.stride(0), args.y_RHX.stride(1)},
             pointer<const float>(cosines), pointer<const float>(sines), num_threads,
             static_cast<int>(H), half, Divider(vectors), Divider(head_groups));
    };
    if (half % kFull == 0 && all_aligned(args.x_RHX, args.y_RHX)) {
      run(rotary_kernel<T, kFull>, kFull);
    } else {
      run(rotary_kernel<T, 1>, 1);
    }
  });
}

}  // namespace deltatrain::backend::cuda
