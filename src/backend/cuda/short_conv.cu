// Causal depthwise convolution with SiLU. A thread owns a few neighbouring channels and walks down
// a range of rows with the last inputs in registers, so that every element is read once but for the
// rows where ranges meet.
#include <algorithm>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/sequences.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 128;
constexpr int kUsualTaps = 4;
constexpr int kMaxTaps = 8;
constexpr int kForwardVector = 8;  // bf16 channels per thread
constexpr int kBackwardVector = 4;
constexpr int64_t kForwardRows = 64;  // rows of a range, at most
constexpr int64_t kPartials =
    528;                   // ranges of backward, each with its row of dweight's partial sums
constexpr int kAhead = 4;  // rows loaded before the first is used

// Every kernel: grid = row ranges x channel blocks, channel blocks first.
struct Range {
  int64_t channel;  // of the thread's first; may lie past the end
  int64_t begin;    // rows
  int64_t end;
  int64_t index;

  __device__ __forceinline__ Range(int64_t channel_blocks, int channels_per_block,
                                   int channels_per_thread, int64_t rows, int64_t R) {
    index = blockIdx.x / channel_blocks;
    channel = (blockIdx.x - index * channel_blocks) * channels_per_block +
              static_cast<int64_t>(threadIdx.x) * channels_per_thread;
    begin = index * rows;
    end = begin + rows < R ? begin + rows : R;
  }
};

// Weights of kChannels channels, [channel][tap]; the last tap meets the current token, and taps
// that a shorter filter lacks, at the front, are zero.
template <int kTaps, int kChannels>
__device__ __forceinline__ void load_weights(const float* weight, int64_t channel, int taps,
                                             float (&w)[kChannels][kTaps]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const int tap = j - (kTaps - taps);
      w[c][j] = tap >= 0 ? weight[(channel + c) * taps + tap] : 0.0F;
    }
  }
}

// Input `back` rows before the start of sequence s (back = 1: the newest of its history); zero
// without one or further back than it reaches.
__device__ __forceinline__ float history_value(const float* history, int64_t s, int64_t channel,
                                               int taps, int back, int64_t X) {
  if (history == nullptr || back >= taps) return 0.0F;
  return history[(s * (taps - 1) + (taps - 1 - back)) * X + channel];
}

// window[j] = input kTaps - 1 - j rows before `row`, for j < kTaps - 1.
template <class T, int kTaps, int kChannels>
__device__ __forceinline__ void fill_window(const T* x, int64_t x_stride, const float* history,
                                            int64_t s, int64_t sequence_begin, int64_t row,
                                            int64_t channel, int taps, int64_t X,
                                            float (&window)[kTaps - 1][kChannels]) {
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) {
    const int64_t at = row - (kTaps - 1 - j);
    if (at >= sequence_begin) {
      load_values(x + at * x_stride + channel, window[j]);
    } else {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        window[j][c] =
            history_value(history, s, channel + c, taps, static_cast<int>(sequence_begin - at), X);
      }
    }
  }
}

template <int kRows, int kChannels>
__device__ __forceinline__ void shift_window(float (&window)[kRows][kChannels],
                                             const float (&newest)[kChannels]) {
#pragma unroll
  for (int j = 0; j + 1 < kRows; ++j) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) window[j][c] = window[j + 1][c];
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) window[kRows - 1][c] = newest[c];
}

// Taps that a shorter filter lacks are skipped, not multiplied by zero: what they would meet may
// not be finite.
template <int kTaps, int kChannels>
__device__ __forceinline__ void convolve(const float (&w)[kChannels][kTaps],
                                         const float (&window)[kTaps - 1][kChannels],
                                         const float (&newest)[kChannels], int taps,
                                         float (&z)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    z[c] = 0;
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      if (kTaps == kUsualTaps || j >= kTaps - taps) z[c] += w[c][j] * window[j][c];
    }
    z[c] += w[c][kTaps - 1] * newest[c];
  }
}

// Bytes per element: x once (and kTaps - 1 more rows per range), y once.
template <class T, int kTaps, int kChannels>
__global__ void __launch_bounds__(kBlock)
    short_conv_forward_kernel(const T* x, int64_t x_stride, const float* weight, int taps,
                              const int32_t* offsets, int num_sequences, const float* history, T* y,
                              int64_t y_stride, int64_t R, int64_t X, int64_t rows_per_range,
                              int64_t channel_blocks) {
  const Range range(channel_blocks, kBlock * kChannels, kChannels, rows_per_range, R);
  if (range.channel >= X) return;
  float w[kChannels][kTaps];
  load_weights(weight, range.channel, taps, w);
  int s = find_sequence(offsets, num_sequences, range.begin);
  int64_t next_begin = offsets[s + 1];
  float window[kTaps - 1][kChannels];
  fill_window<T, kTaps>(x, x_stride, history, s, offsets[s], range.begin, range.channel, taps, X,
                        window);

  for (int64_t base = range.begin; base < range.end; base += kAhead) {
    Pack<T, kChannels> in[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      in[a].set_zero();
      if (base + a < range.end)
        in[a] = load_pack<T, kChannels>(x + (base + a) * x_stride + range.channel);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t row = base + a;
      if (row >= range.end) break;
      if (row == next_begin) {
        ++s;
        next_begin = offsets[s + 1];
        fill_window<T, kTaps>(x, x_stride, history, s, row, row, range.channel, taps, X, window);
      }
      float newest[kChannels];
      float z[kChannels];
      in[a].unpack(newest);
      convolve<kTaps>(w, window, newest, taps, z);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) z[c] *= sigmoid<T>(z[c]);
      store_values(y + row * y_stride + range.channel, z);
      shift_window(window, newest);
    }
  }
}

// Grid: one thread per sequence and channel. Runs after the convolution, and reads all of a history
// before it writes any, so that the new history may lie over the old one.
template <class T>
__global__ void __launch_bounds__(kBlock)
    short_conv_forward_history_kernel(const T* x, int64_t x_stride, int taps,
                                      const int32_t* offsets, int64_t num_sequences,
                                      const float* initial, float* final, int64_t X,
                                      int64_t channel_blocks) {
  const int64_t s = blockIdx.x / channel_blocks;
  const int64_t channel = (blockIdx.x - s * channel_blocks) * kBlock + threadIdx.x;
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

// Walks a few rows past its range, since dx of a row needs dz of the kTaps - 1 rows after it; adds
// to dweight only for rows of its own. dx of the last kTaps - 1 rows is under way in `pending`,
// oldest first. Bytes per element: x, dy, dx, once (and 3 (kTaps - 1) more rows per range).
template <class T, int kTaps, int kChannels>
__global__ void __launch_bounds__(kBlock)
    short_conv_backward_kernel(const T* dy, int64_t dy_stride, const T* x, int64_t x_stride,
                               const float* weight, int taps, const int32_t* offsets,
                               int num_sequences, T* dx, int64_t dx_stride, float* partial,
                               int64_t R, int64_t X, int64_t rows_per_range,
                               int64_t channel_blocks) {
  const Range range(channel_blocks, kBlock * kChannels, kChannels, rows_per_range, R);
  if (range.channel >= X) return;
  constexpr int kPast = kTaps - 1;
  float w[kChannels][kTaps];
  float dw[kChannels][kTaps] = {};
  load_weights(weight, range.channel, taps, w);
  if (range.begin < range.end) {
    int s = find_sequence(offsets, num_sequences, range.begin);
    int64_t next_begin = offsets[s + 1];
    float window[kPast][kChannels];
    float pending[kPast][kChannels] = {};
    fill_window<T, kTaps>(x, x_stride, nullptr, s, offsets[s], range.begin, range.channel, taps, X,
                          window);

    // Writes dx of the rows before `row` that are this range's; they get no more contributions.
    const auto flush = [&](int64_t row) {
#pragma unroll
      for (int j = 0; j < kPast; ++j) {
        const int64_t at = row - kPast + j;
        if (at >= range.begin && at < range.end && at >= offsets[s])
          store_values(dx + at * dx_stride + range.channel, pending[j]);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) pending[j][c] = 0;
      }
    };

    const int64_t end = range.end + kPast < R ? range.end + kPast : R;
    bool done = false;
    int64_t row = range.begin;
    for (int64_t base = range.begin; base < end && !done; base += kAhead) {
      Pack<T, kChannels> in_x[kAhead];
      Pack<T, kChannels> in_dy[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (base + a < end) {
          in_x[a] = load_pack<T, kChannels>(x + (base + a) * x_stride + range.channel);
          in_dy[a] = load_pack<T, kChannels>(dy + (base + a) * dy_stride + range.channel);
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        row = base + a;
        if (row >= end || done) break;
        if (row == next_begin) {
          flush(row);
          if (row >= range.end) {
            done = true;  // the rows that follow belong to another sequence
            break;
          }
          ++s;
          next_begin = offsets[s + 1];
#pragma unroll
          for (int j = 0; j < kPast; ++j) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) window[j][c] = 0;
          }
        }
        float newest[kChannels];
        float dz[kChannels];
        float z[kChannels];
        in_x[a].unpack(newest);
        in_dy[a].unpack(dz);
        convolve<kTaps>(w, window, newest, taps, z);
        const bool own = row < range.end;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float sig = sigmoid<T>(z[c]);
          dz[c] *= sig * (1.0F + z[c] * (1.0F - sig));
        }
        float oldest[kChannels];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          if (own) {
#pragma unroll
            for (int j = 0; j < kPast; ++j) {
              if (kTaps == kUsualTaps || j >= kTaps - taps) dw[c][j] += dz[c] * window[j][c];
            }
            dw[c][kTaps - 1] += dz[c] * newest[c];
          }
          // pending[j] is dx of row - kPast + j, which tap j of this row's product met.
#pragma unroll
          for (int j = 0; j < kPast; ++j) {
            if (kTaps == kUsualTaps || j >= kTaps - taps) pending[j][c] += w[c][j] * dz[c];
          }
          oldest[c] = pending[0][c];
        }
        const int64_t finished = row - kPast;
        if (finished >= range.begin && finished >= offsets[s]) {
          store_values(dx + finished * dx_stride + range.channel, oldest);
        }
        float started[kChannels];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) started[c] = w[c][kTaps - 1] * dz[c];
        shift_window(pending, started);
        shift_window(window, newest);
      }
    }
    if (!done) flush(end);
  }
  float* my_partial = partial + range.index * X * taps + range.channel * taps;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const int tap = j - (kTaps - taps);
      if (tap >= 0) my_partial[c * taps + tap] = dw[c][j];
    }
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
      const int64_t channel_blocks = divide_up(X, kBlock * channels);
      // Short ranges where there are few rows, so that decoding one token of many sequences fills
      // the device.
      const int64_t rows = std::clamp<int64_t>(R * channel_blocks / 2048, 1, kForwardRows);
      launch(device, "short_conv_forward_kernel", kernel, divide_up(R, rows) * channel_blocks,
             kBlock, 0, pointer<const T>(args.x_RX), args.x_RX.stride(0),
             pointer<const float>(args.weight_XW), taps,
             pointer<const int32_t>(args.sequences.device_offsets), num_sequences,
             pointer<const float>(args.initial_history_SWX), pointer<T>(args.y_RX),
             args.y_RX.stride(0), R, X, rows, channel_blocks);
    };
    bool vectors = false;
    if constexpr (sizeof(T) == 2) {
      vectors = taps == kUsualTaps && X % kForwardVector == 0 && all_aligned(args.x_RX, args.y_RX);
      if (vectors) run(short_conv_forward_kernel<T, kUsualTaps, kForwardVector>, kForwardVector);
    }
    if (!vectors) run(short_conv_forward_kernel<T, kMaxTaps, 1>, 1);
    if (args.final_history_SWX.defined() && taps > 1) {
      const int64_t channel_blocks = divide_up(X, kBlock);
      launch(device, "short_conv_forward_history_kernel", short_conv_forward_history_kernel<T>,
             num_sequences * channel_blocks, kBlock, 0, pointer<const T>(args.x_RX),
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
  // Ranges of whole groups of rows, no more of them than keep the repeated rows few.
  const int64_t rows = round_up(std::max<int64_t>(divide_up(R, kPartials), 2 * kMaxTaps), kAhead);
  const int64_t ranges = std::max<int64_t>(1, divide_up(R, rows));
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial = context.arena->scratch(DType::kF32, {ranges, X * taps});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  with_activation_type("short_conv_backward", args.x_RX.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const auto run = [&](auto kernel, int channels) {
      const int64_t channel_blocks = divide_up(X, kBlock * channels);
      launch(device, "short_conv_backward_kernel", kernel, ranges * channel_blocks, kBlock, 0,
             pointer<const T>(args.dy_RX), args.dy_RX.stride(0), pointer<const T>(args.x_RX),
             args.x_RX.stride(0), pointer<const float>(args.weight_XW), taps,
             pointer<const int32_t>(args.sequences.device_offsets),
             narrow<int>(args.sequences.num()), pointer<T>(args.dx_RX), args.dx_RX.stride(0),
             pointer<float>(partial), R, X, rows, channel_blocks);
    };
    bool vectors = false;
    if constexpr (sizeof(T) == 2) {
      vectors = taps == kUsualTaps && X % kBackwardVector == 0 && is_aligned(args.dy_RX, 8) &&
                is_aligned(args.x_RX, 8) && is_aligned(args.dx_RX, 8);
      if (vectors) run(short_conv_backward_kernel<T, kUsualTaps, kBackwardVector>, kBackwardVector);
    }
    if (!vectors) run(short_conv_backward_kernel<T, kMaxTaps, 1>, 1);
  });
  add_partial_rows(device, partial, pointer<float>(args.dweight_XW));
}

}  // namespace deltatrain::backend::cuda
