// Kernels of the causal depthwise convolution with SiLU, alone or with the L2 norm of heads after
// it. A thread owns a few neighbouring channels and walks down a range of rows with the last inputs
// in registers, so that every element is read once but for the rows where ranges meet.
#pragma once

#include <algorithm>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/sequences.cuh"

namespace deltatrain::backend::cuda {

inline constexpr int kConvBlock = 64;
inline constexpr int kUsualTaps = 4;
inline constexpr int kMaxTaps = 8;
inline constexpr int kForwardVector = 8;  // bf16 channels per thread
inline constexpr int kBackwardVector = 4;
// Blocks of forward and backward, about what a device of 132 multiprocessors runs at once.
inline constexpr int64_t kForwardBlocks = 768;
inline constexpr int64_t kBackwardBlocks = 792;
inline constexpr int64_t kForwardRows = 128;  // rows of a range, at most
inline constexpr int kAhead = 4;              // rows on their way while as many are worked on

// Rows of a range of forward: few where there are few rows, so that decoding one token of many
// sequences fills the device.
inline int64_t conv_forward_rows(int64_t R, int64_t channel_blocks) {
  const int64_t rows = std::clamp<int64_t>(R * channel_blocks / kForwardBlocks, 1, kForwardRows);
  return rows <= kAhead ? rows : round_up(rows, kAhead);
}
// Rows of a range of backward: whole groups, in as many ranges as give the blocks that run at once,
// and no more than keep the repeated rows few.
inline int64_t conv_backward_rows(int64_t R, int64_t channel_blocks, int64_t blocks_at_once) {
  const int64_t ranges = std::max<int64_t>(blocks_at_once / channel_blocks, 1);
  return round_up(std::max<int64_t>(divide_up(R, ranges), 2 * kMaxTaps), kAhead);
}

// The channels of an output, or of its gradient, in one tensor or in two of equal width (q and k).
template <class T>
struct ConvRows {
  T* first = nullptr;
  T* second = nullptr;  // channels from `split` on
  int64_t split = 0;
  int64_t stride = 0;  // of both

  __device__ __forceinline__ T* at(int64_t channel) const {
    return channel < split ? first + channel : second + (channel - split);
  }
};

// Inverse L2 norms [R, heads] beside the channels of a ConvRows; heads have kLanes threads.
template <class T>
struct ConvNorms {
  T* first = nullptr;
  T* second = nullptr;
  int64_t heads = 0;
  float eps = 0;

  __device__ __forceinline__ T* at(int64_t channel, int64_t split, int width) const {
    return channel < split ? first + channel / width : second + (channel - split) / width;
  }
};

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
// that a shorter filter lacks, at the front, are zero. With kUsualTaps, 16 bytes at a time.
template <int kTaps, int kChannels>
__device__ __forceinline__ void load_weights(const float* weight, int64_t channel, int taps,
                                             float (&w)[kChannels][kTaps]) {
  if constexpr (kTaps == kUsualTaps) {
    Pack<float, kChannels* kTaps> all =
        load_pack<float, kChannels * kTaps>(weight + channel * kTaps);
#pragma unroll
    for (int i = 0; i < kChannels * kTaps; ++i)
      w[i / kTaps][i % kTaps] = __uint_as_float(all.words[i]);
  } else {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const int tap = j - (kTaps - taps);
        w[c][j] = tap >= 0 ? weight[(channel + c) * taps + tap] : 0.0F;
      }
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

// kLanes > 0: heads of kLanes * kChannels channels are divided by their L2 norm. Bytes per element:
// x once (and kTaps - 1 more rows per range), y once.
template <class T, int kTaps, int kChannels, int kLanes>
__global__ void __launch_bounds__(kConvBlock)
    short_conv_forward_kernel(const T* x, int64_t x_stride, const float* weight, int taps,
                              const int32_t* offsets, int num_sequences, const float* history,
                              ConvRows<T> y, ConvNorms<float> norms, int64_t R, int64_t X,
                              int64_t rows_per_range, int64_t channel_blocks) {
  Range range(channel_blocks, kConvBlock * kChannels, kChannels, rows_per_range, R);
  const bool active = range.channel < X;
  if constexpr (kLanes == 0) {
    if (!active) return;
  } else {
    if (!active) range.channel = 0;  // the warp stays whole for its sums
  }
  float w[kChannels][kTaps];
  load_weights(weight, range.channel, taps, w);
  int s = find_sequence(offsets, num_sequences, range.begin);
  float window[kTaps - 1][kChannels];
  fill_window<T, kTaps>(x, x_stride, history, s, offsets[s], range.begin, range.channel, taps, X,
                        window);
  constexpr int kHead = kLanes > 0 ? kLanes * kChannels : 1;
  float* inv_norm = nullptr;
  if constexpr (kLanes > 0) {
    inv_norm = norms.at(range.channel, y.split, kHead) + range.begin * norms.heads;
  }
  const bool writes_norm = active && range.channel % kHead == 0;

  // Rows count from the range's first one.
  const int count = static_cast<int>(range.end - range.begin);
  int next_begin = static_cast<int>(offsets[s + 1] - range.begin);
  const T* from = x + range.begin * x_stride + range.channel;
  T* to = y.at(range.channel) + range.begin * y.stride;
  Pack<T, kChannels> ahead[kAhead];
  const auto load = [&](int base) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a < count) ahead[a] = load_pack<T, kChannels>(from + a * x_stride);
    }
    from += kAhead * x_stride;
  };
  const auto finish_row = [&](const Pack<T, kChannels>& in, int a) {
    float newest[kChannels];
    float z[kChannels];
    in.unpack(newest);
    convolve<kTaps>(w, window, newest, taps, z);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) z[c] *= sigmoid<T>(z[c]);
    if constexpr (kLanes > 0) {
      float sum_of_squares = 0;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum_of_squares += z[c] * z[c];
      const float r = rsqrtf(sum_over_lanes<kLanes>(sum_of_squares) + norms.eps);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) z[c] *= r;
      if (writes_norm) inv_norm[a * norms.heads] = r;
    }
    if (kLanes == 0 || active) store_values(to + a * y.stride, z);
    shift_window(window, newest);
  };
  load(0);
  for (int base = 0; base < count; base += kAhead) {
    Pack<T, kChannels> in[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) in[a] = ahead[a];
    load(base + kAhead);
    if (base + kAhead <= count && base + kAhead <= next_begin) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) finish_row(in[a], a);
    } else {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (base + a >= count) break;
        if (base + a == next_begin) {
          const int64_t row = range.begin + next_begin;
          ++s;
          next_begin = static_cast<int>(offsets[s + 1] - range.begin);
          fill_window<T, kTaps>(x, x_stride, history, s, row, row, range.channel, taps, X, window);
        }
        finish_row(in[a], a);
      }
    }
    to += kAhead * y.stride;
    if constexpr (kLanes > 0) inv_norm += kAhead * norms.heads;
  }
}

// kLanes as in forward: dy is then the gradient of the normalised heads, and with a the SiLU's
// output and r the inverse norm, da = r (dy - r a sum over the head of dy r a).
//
// Walks a few rows past its range, since dx of a row needs dz of the kTaps - 1 rows after it; adds
// to dweight only for rows of its own. dx of the last kTaps - 1 rows is under way in `pending`,
// oldest first. Bytes per element: x, dy, dx, once (and 3 (kTaps - 1) more rows per range).
template <class T, int kTaps, int kChannels, int kLanes>
__global__ void __launch_bounds__(kConvBlock)
    short_conv_backward_kernel(ConvRows<const T> dy, ConvNorms<const float> norms, const T* x,
                               int64_t x_stride, const float* weight, int taps,
                               const int32_t* offsets, int num_sequences, T* dx, int64_t dx_stride,
                               float* partial, int64_t R, int64_t X, int64_t rows_per_range,
                               int64_t channel_blocks) {
  Range range(channel_blocks, kConvBlock * kChannels, kChannels, rows_per_range, R);
  const bool active = range.channel < X;
  if constexpr (kLanes == 0) {
    if (!active) return;
  } else {
    if (!active) range.channel = 0;  // the warp stays whole for its sums
  }
  constexpr int kPast = kTaps - 1;
  float w[kChannels][kTaps];
  float dw[kChannels][kTaps] = {};
  load_weights(weight, range.channel, taps, w);
  if (range.begin < range.end) {
    int s = find_sequence(offsets, num_sequences, range.begin);
    float window[kPast][kChannels];
    float pending[kPast][kChannels] = {};
    fill_window<T, kTaps>(x, x_stride, nullptr, s, offsets[s], range.begin, range.channel, taps, X,
                          window);

    // Rows count from the range's first one.
    const int count = static_cast<int>(range.end - range.begin);
    const int end = range.end + kPast < R ? count + kPast : static_cast<int>(R - range.begin);
    int begin = static_cast<int>(offsets[s] - range.begin);  // of the sequence
    int next_begin = static_cast<int>(offsets[s + 1] - range.begin);
    const T* from_x = x + range.begin * x_stride + range.channel;
    const T* from_dy = dy.at(range.channel) + range.begin * dy.stride;
    T* const to = dx + range.begin * dx_stride + range.channel;
    const float* inv_norm = nullptr;
    if constexpr (kLanes > 0) {
      inv_norm = norms.at(range.channel, dy.split, kLanes * kChannels) + range.begin * norms.heads;
    }
    Pack<T, kChannels> ahead_x[kAhead];
    Pack<T, kChannels> ahead_dy[kAhead];
    float ahead_norm[kAhead];
    const auto load = [&](int base) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (base + a < end) {
          ahead_x[a] = load_pack<T, kChannels>(from_x + a * x_stride);
          ahead_dy[a] = load_pack<T, kChannels>(from_dy + a * dy.stride);
          if constexpr (kLanes > 0) ahead_norm[a] = inv_norm[a * norms.heads];
        }
      }
      from_x += kAhead * x_stride;
      from_dy += kAhead * dy.stride;
      if constexpr (kLanes > 0) inv_norm += kAhead * norms.heads;
    };

    // Writes dx of the rows before `row` that are this range's; they get no more contributions.
    const auto flush = [&](int row) {
#pragma unroll
      for (int j = 0; j < kPast; ++j) {
        const int at = row - kPast + j;
        if ((kLanes == 0 || active) && at >= 0 && at < count && at >= begin)
          store_values(to + at * dx_stride, pending[j]);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) pending[j][c] = 0;
      }
    };
    // Takes one row in; `is_own`: it belongs to this range, so that dweight gets its part;
    // `is_written`: so does the row kPast before it, of the same sequence, whose dx is now
    // complete.
    const auto take_row = [&](const Pack<T, kChannels>& in_x, const Pack<T, kChannels>& in_dy,
                              float in_norm, bool is_own, bool is_written, T* written) {
      float newest[kChannels];
      float dz[kChannels];
      float z[kChannels];
      in_x.unpack(newest);
      in_dy.unpack(dz);
      convolve<kTaps>(w, window, newest, taps, z);
      if constexpr (kLanes > 0) {
        float slope[kChannels];
        float dot = 0;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float sig = sigmoid<T>(z[c]);
          const float scaled = sig * in_norm;
          slope[c] = scaled * (1.0F + z[c] * (1.0F - sig));
          z[c] *= scaled;
          dot += dz[c] * z[c];
        }
        dot = sum_over_lanes<kLanes>(dot);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) dz[c] = slope[c] * (dz[c] - z[c] * dot);
      } else {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float sig = sigmoid<T>(z[c]);
          dz[c] *= sig * (1.0F + z[c] * (1.0F - sig));
        }
      }
      if (is_own) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
#pragma unroll
          for (int j = 0; j < kPast; ++j) {
            if (kTaps == kUsualTaps || j >= kTaps - taps) dw[c][j] += dz[c] * window[j][c];
          }
          dw[c][kTaps - 1] += dz[c] * newest[c];
        }
      }
      // pending[j] is dx of the row kPast - j before, which tap j of this row's product met. Which
      // of two products is rounded is said here: the compiler would choose by what stands around
      // each copy of this code, and dx would depend on where a range begins.
      float oldest[kChannels];
      float started[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
#pragma unroll
        for (int j = 0; j < kPast; ++j) {
          if (kTaps == kUsualTaps || j >= kTaps - taps)
            pending[j][c] = fmaf(w[c][j], dz[c], pending[j][c]);
        }
        oldest[c] = pending[0][c];
        started[c] = __fmul_rn(w[c][kTaps - 1], dz[c]);
      }
      if ((kLanes == 0 || active) && is_written) store_values(written, oldest);
      shift_window(pending, started);
      shift_window(window, newest);
    };

    load(0);
    bool done = false;
    T* written = to - kPast * dx_stride;  // dx of the row that the group's first row completes
    for (int base = 0; base < end && !done; base += kAhead, written += kAhead * dx_stride) {
      Pack<T, kChannels> in_x[kAhead];
      Pack<T, kChannels> in_dy[kAhead];
      float in_norm[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        in_x[a] = ahead_x[a];
        in_dy[a] = ahead_dy[a];
        in_norm[a] = kLanes > 0 ? ahead_norm[a] : 0.0F;
      }
      load(base + kAhead);
      if (base + kAhead <= count && base + kAhead <= next_begin && base - kPast >= max(0, begin)) {
#pragma unroll
        for (int a = 0; a < kAhead; ++a)
          take_row(in_x[a], in_dy[a], in_norm[a], true, true, written + a * dx_stride);
        continue;
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int row = base + a;
        if (row >= end || done) break;
        if (row == next_begin) {
          flush(row);
          if (row >= count) {
            done = true;  // the rows that follow belong to another sequence
            break;
          }
          ++s;
          begin = row;
          next_begin = static_cast<int>(offsets[s + 1] - range.begin);
#pragma unroll
          for (int j = 0; j < kPast; ++j) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) window[j][c] = 0;
          }
        }
        take_row(in_x[a], in_dy[a], in_norm[a], row < count, row - kPast >= max(0, begin),
                 written + a * dx_stride);
      }
    }
    if (!done) flush(end);
  }
  if (!active) return;
  float* my_partial = partial + range.index * X * taps + range.channel * taps;
  if constexpr (kTaps == kUsualTaps) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) store_values(my_partial + c * kTaps, dw[c]);
  } else {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const int tap = j - (kTaps - taps);
        if (tap >= 0) my_partial[c * taps + tap] = dw[c][j];
      }
    }
  }
}

}  // namespace deltatrain::backend::cuda
