// Causal depthwise convolution with SiLU, and the history that decoding carries.
#include "backend/cuda/short_conv.cuh"

#include <algorithm>

#include "backend/cuda/kernels.h"

namespace deltatrain::backend::cuda {

namespace {

// Grid: one thread per sequence and channel. Runs after the convolution, and reads all of a history
// before it writes any, so that the new history may lie over the old one.
template <class T>
__global__ void __launch_bounds__(kConvBlock)
    short_conv_forward_history_kernel(const T* x, int64_t x_stride, int taps,
                                      const int32_t* offsets, int64_t num_sequences,
                                      const float* initial, float* final, int64_t X,
                                      int64_t channel_blocks) {
  const int64_t s = blockIdx.x / channel_blocks;
  const int64_t channel = (blockIdx.x - s * channel_blocks) * kConvBlock + threadIdx.x;
  if (s >= num_sequences || channel >= X) return;
  const int64_t begin = offsets[s];
  const int64_t end = offsets[s + 1];
  float values[kMaxTaps - 1];
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j >= taps - 1) continue;
    const int64_t at = end - (taps - 1) + j;
    values[j] = at >= begin
                    ? to_float(x[at * x_stride + channel])
                    : history_value(initial, s, channel, taps, static_cast<int>(begin - at), X);
  }
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j < taps - 1) final[(s * (taps - 1) + j) * X + channel] = values[j];
  }
}

}  // namespace

void short_conv_forward(const Context& context, const ops::ShortConvForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.x_RX.size(1);
  const int taps = narrow<int>(args.weight_XW.size(1));
  const int num_sequences = narrow<int>(args.sequences.num());
  with_activation_type("short_conv_forward", args.x_RX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const auto run = [&](auto kernel, int channels) {
      const int64_t channel_blocks = divide_up(X, kConvBlock * channels);
      const int64_t rows = conv_forward_rows(R, channel_blocks);
      launch(device, "short_conv_forward_kernel", kernel, divide_up(R, rows) * channel_blocks,
             kConvBlock, 0, pointer<const T>(args.x_RX), args.x_RX.stride(0),
             pointer<const float>(args.weight_XW), taps,
             pointer<const int32_t>(args.sequences.device_offsets), num_sequences,
             pointer<const float>(args.initial_history_SWX),
             ConvRows<T>{pointer<T>(args.y_RX), nullptr, X, args.y_RX.stride(0)},
             ConvNorms<float>{}, R, X, rows, channel_blocks);
    };
    bool vectors = false;
    if constexpr (sizeof(T) == 2) {
      vectors = taps == kUsualTaps && X % kForwardVector == 0 &&
                all_aligned(args.x_RX, args.y_RX, args.weight_XW);
      if (vectors) run(short_conv_forward_kernel<T, kUsualTaps, kForwardVector, 0>, kForwardVector);
    }
    if (!vectors) run(short_conv_forward_kernel<T, kMaxTaps, 1, 0>, 1);
    if (args.final_history_SWX.defined() && taps > 1) {
      const int64_t channel_blocks = divide_up(X, kConvBlock);
      launch(device, "short_conv_forward_history_kernel", short_conv_forward_history_kernel<T>,
             num_sequences * channel_blocks, kConvBlock, 0, pointer<const T>(args.x_RX),
             args.x_RX.stride(0), taps, pointer<const int32_t>(args.sequences.device_offsets),
             int64_t{num_sequences}, pointer<const float>(args.initial_history_SWX),
             pointer<float>(args.final_history_SWX), X, channel_blocks);
    }
  });
}

void short_conv_backward(const Context& context, const ops::ShortConvBackward& args) {
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.x_RX.size(1);
  const int taps = narrow<int>(args.weight_XW.size(1));
  // The same for both kernels, since vectors depend on addresses.
  const int64_t rows =
      conv_backward_rows(R, divide_up(X, kConvBlock * kBackwardVector), kBackwardBlocks);
  const int64_t ranges = std::max<int64_t>(1, divide_up(R, rows));
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial = context.arena->scratch(DType::kF32, {ranges, X * taps});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  with_activation_type("short_conv_backward", args.x_RX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const auto run = [&](auto kernel, int channels) {
      const int64_t channel_blocks = divide_up(X, kConvBlock * channels);
      launch(device, "short_conv_backward_kernel", kernel, ranges * channel_blocks, kConvBlock, 0,
             ConvRows<const T>{pointer<const T>(args.dy_RX), nullptr, X, args.dy_RX.stride(0)},
             ConvNorms<const float>{}, pointer<const T>(args.x_RX), args.x_RX.stride(0),
             pointer<const float>(args.weight_XW), taps,
             pointer<const int32_t>(args.sequences.device_offsets),
             narrow<int>(args.sequences.num()), pointer<T>(args.dx_RX), args.dx_RX.stride(0),
             pointer<float>(partial), R, X, rows, channel_blocks);
    };
    bool vectors = false;
    if constexpr (sizeof(T) == 2) {
      vectors = taps == kUsualTaps && X % kBackwardVector == 0 && is_aligned(args.dy_RX, 8) &&
                is_aligned(args.x_RX, 8) && is_aligned(args.dx_RX, 8) &&
                is_aligned(args.weight_XW, 16);
      if (vectors)
        run(short_conv_backward_kernel<T, kUsualTaps, kBackwardVector, 0>, kBackwardVector);
    }
    if (!vectors) run(short_conv_backward_kernel<T, kMaxTaps, 1, 0>, 1);
  });
  add_partial_rows(device, partial, pointer<float>(args.dweight_XW));
}

}  // namespace deltatrain::backend::cuda
