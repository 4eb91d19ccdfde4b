// Inputs before the start of a sequence come from its history or from a row of zeros, so that the
// inner loops over channels see W plain pointers.
#include <array>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/sequence_rows.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t kMaxTaps = 8;
constexpr int64_t kPrefetched = 64;  // channels of the next row that are asked for at a time
constexpr int64_t kChannels =
    128;  // backward works on this many channels at a time, to stay in the first cache

struct ConvInput {
  const float* x;
  int64_t stride;
  int64_t num_channels;
  const ops::Sequences* sequences;
  const float* history;  // [S, W-1, X] or null
  const float* zeros;    // X of them
};

// The W inputs that meet row t of sequence s, oldest first.
template <int W>
std::array<const float*, W> inputs_of_row(const ConvInput& input, int64_t s, int64_t t) {
  std::array<const float*, W> rows;
  const int64_t local = t - input.sequences->begin(s);
  for (int j = 0; j < W; ++j) {
    const int64_t from = local - (W - 1) + j;
    if (from >= 0) {
      rows[static_cast<size_t>(j)] = input.x + (t - (W - 1) + j) * input.stride;
    } else if (input.history != nullptr) {
      rows[static_cast<size_t>(j)] =
          input.history + (s * (W - 1) + from + (W - 1)) * input.num_channels;
    } else {
      rows[static_cast<size_t>(j)] = input.zeros;
    }
  }
  return rows;
}

void transpose_weight(const Tensor& weight_XW, float* weight_WX) {
  const int64_t X = weight_XW.size(0);
  const int64_t W = weight_XW.size(1);
  const float* weight = weight_XW.data<float>();
  for (int64_t x = 0; x < X; ++x) {
    for (int64_t j = 0; j < W; ++j) weight_WX[j * X + x] = weight[x * W + j];
  }
}

template <int W>
void forward(const ops::ShortConvForward& args, const ConvInput& input, const float* weight_WX) {
  const int64_t X = input.num_channels;
  float* y = args.y_RX.data<float>();
  const int64_t y_stride = args.y_RX.stride(0);
  parallel_rows(args.x_RX.size(0), X, [&](int64_t begin, int64_t end) {
    int64_t s = sequence_of_row(args.sequences, begin);
    for (int64_t t = begin; t < end; ++t) {
      while (t >= args.sequences.end(s)) ++s;
      const std::array<const float*, W> in = inputs_of_row<W>(input, s, t);
      float* y_row = y + t * y_stride;
      const float* next = input.x + (t + 1) * input.stride;
      for (int64_t first = 0; first < X; first += kPrefetched) {
        prefetch(next + first, kPrefetched);
        const int64_t last = std::min(X, first + kPrefetched);
#pragma omp simd
        for (int64_t x = first; x < last; ++x) {
          float z = 0;
#pragma GCC unroll 8
          for (int j = 0; j < W; ++j) z += weight_WX[j * X + x] * in[static_cast<size_t>(j)][x];
          y_row[x] = silu_f32(z);
        }
      }
    }
  });
}

// The last W - 1 inputs of each sequence. Row m reads no row before m of an aliased history.
void write_history(const ops::ShortConvForward& args, int64_t W) {
  const int64_t X = args.x_RX.size(1);
  const float* x = args.x_RX.data<float>();
  const float* initial = args.initial_history_SWX.data<float>();
  float* final_history = args.final_history_SWX.data<float>();
  const auto bytes = static_cast<size_t>(X) * sizeof(float);
  for (int64_t s = 0; s < args.sequences.num(); ++s) {
    const int64_t length = args.sequences.length(s);
    for (int64_t m = 0; m < W - 1; ++m) {
      float* to = final_history + (s * (W - 1) + m) * X;
      const int64_t from = length - (W - 1) + m;
      if (from >= 0) {
        std::memcpy(to, x + (args.sequences.begin(s) + from) * args.x_RX.stride(0), bytes);
      } else if (initial != nullptr) {
        std::memcpy(to, initial + (s * (W - 1) + length + m) * X, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
}

// One block of kSumRows rows and one block of channels. dz holds the rows of the block and the W -
// 1 after it, which reach back into the block through dx.
template <int W>
void backward_block(const ops::ShortConvBackward& args, const ConvInput& input,
                    const float* weight_WX, int64_t first_row, int64_t first_channel, float* dz,
                    float* dweight_WX) {
  const int64_t R = args.x_RX.size(0);
  const int64_t X = input.num_channels;
  const int64_t count = std::min(kChannels, X - first_channel);
  const int64_t last_row = std::min(R, first_row + kSumRows);
  const float* dy = args.dy_RX.data<float>() + first_channel;
  float* dx = args.dx_RX.data<float>() + first_channel;
  const float* weight = weight_WX + first_channel;

  int64_t s = sequence_of_row(args.sequences, first_row);
  for (int64_t t = first_row; t < std::min(R, last_row + W - 1); ++t) {
    while (t >= args.sequences.end(s)) ++s;
    std::array<const float*, W> in = inputs_of_row<W>(input, s, t);
    for (const float*& row : in) row += first_channel;
    const float* dy_row = dy + t * args.dy_RX.stride(0);
    float* dz_row = dz + (t - first_row) * kChannels;
#pragma omp simd
    for (int64_t x = 0; x < count; ++x) {
      float z = 0;
#pragma GCC unroll 8
      for (int j = 0; j < W; ++j) z += weight[j * X + x] * in[static_cast<size_t>(j)][x];
      const float sigmoid = sigmoid_f32(z);
      dz_row[x] = dy_row[x] * sigmoid * (1.0F + z * (1.0F - sigmoid));
    }
    if (t >= last_row) continue;
    float* dweight = dweight_WX + first_channel;
#pragma omp simd
    for (int64_t x = 0; x < count; ++x) {
#pragma GCC unroll 8
      for (int j = 0; j < W; ++j) dweight[j * X + x] += dz_row[x] * in[static_cast<size_t>(j)][x];
    }
  }

  s = sequence_of_row(args.sequences, first_row);
  for (int64_t t = first_row; t < last_row; ++t) {
    while (t >= args.sequences.end(s)) ++s;
    std::array<const float*, W> from;  // dz of row t + W - 1 - j
    for (int j = 0; j < W; ++j) {
      const int64_t row = t + W - 1 - j;
      from[static_cast<size_t>(j)] =
          row < args.sequences.end(s) ? dz + (row - first_row) * kChannels : input.zeros;
    }
    float* dx_row = dx + t * args.dx_RX.stride(0);
#pragma omp simd
    for (int64_t x = 0; x < count; ++x) {
      float sum = 0;
#pragma GCC unroll 8
      for (int j = 0; j < W; ++j) sum += weight[j * X + x] * from[static_cast<size_t>(j)][x];
      dx_row[x] = sum;
    }
  }
}

// Calls body with the number of taps as a constant.
template <class Body>
void with_taps(int64_t W, const Body& body) {
  switch (W) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    case 6:
      return body(std::integral_constant<int, 6>{});
    case 7:
      return body(std::integral_constant<int, 7>{});
    case 8:
      return body(std::integral_constant<int, 8>{});
    default:
      throw UnsupportedError(error_text("short_conv", "taps", "1 to 8", std::to_string(W)));
  }
}

}  // namespace

void short_conv_forward(const Context& context, const ops::ShortConvForward& args) {
  const int64_t X = args.weight_XW.size(0);
  const int64_t W = args.weight_XW.size(1);
  const Arena::ScratchScope scope(*context.arena);
  float* weight_WX = context.arena->scratch(DType::kF32, {W, X}).data<float>();
  float* zeros = context.arena->scratch(DType::kF32, {X}).data<float>();
  if (context.arena->is_planning()) return;
  transpose_weight(args.weight_XW, weight_WX);
  std::fill(zeros, zeros + X, 0.0F);
  const ConvInput input = {args.x_RX.data<float>(),
                           args.x_RX.stride(0),
                           X,
                           &args.sequences,
                           args.initial_history_SWX.data<float>(),
                           zeros};
  with_taps(W, [&](auto taps) { forward<taps>(args, input, weight_WX); });
  if (args.final_history_SWX.defined()) write_history(args, W);
}

void short_conv_backward(const Context& context, const ops::ShortConvBackward& args) {
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.weight_XW.size(0);
  const int64_t W = args.weight_XW.size(1);
  const int64_t num_blocks = num_sum_blocks(R);
  const int64_t dz_size = (kSumRows + kMaxTaps) * kChannels;
  const Arena::ScratchScope scope(*context.arena);
  float* weight_WX = context.arena->scratch(DType::kF32, {W, X}).data<float>();
  float* zeros = context.arena->scratch(DType::kF32, {std::max(X, kChannels)}).data<float>();
  float* dz = context.arena->scratch(DType::kF32, {max_threads(), dz_size}).data<float>();
  float* partials = context.arena->scratch(DType::kF32, {num_blocks, W, X}).data<float>();
  if (context.arena->is_planning()) return;
  transpose_weight(args.weight_XW, weight_WX);
  std::fill(zeros, zeros + std::max(X, kChannels), 0.0F);
  const ConvInput input = {
      args.x_RX.data<float>(), args.x_RX.stride(0), X, &args.sequences, nullptr, zeros};
  with_taps(W, [&](auto taps) {
    parallel_for(num_blocks, [&](int64_t block) {
      float* dweight_WX = partials + block * W * X;
      std::fill(dweight_WX, dweight_WX + W * X, 0.0F);
      for (int64_t channel = 0; channel < X; channel += kChannels) {
        backward_block<taps>(args, input, weight_WX, block * kSumRows, channel,
                             dz + thread_index() * dz_size, dweight_WX);
      }
    });
  });
  float* total_WX = weight_WX;  // the weights are done with
  std::fill(total_WX, total_WX + W * X, 0.0F);
  add_partial_sums(partials, num_blocks, W * X, total_WX);
  float* dweight = args.dweight_XW.data<float>();
  for (int64_t x = 0; x < X; ++x) {
    for (int64_t j = 0; j < W; ++j) dweight[x * W + j] += total_WX[j * X + x];
  }
}

}  // namespace deltatrain::backend::cpu
