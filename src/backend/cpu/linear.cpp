// Products go to oneDNN's sgemm in tiles of the output, one thread per tile: each element is then one sum
// over k in an order that depends on neither the number of threads nor the other rows (sgemm takes other
// kernels below 16 rows, so no tile is smaller unless the whole product is). A handful of rows, as in
// decoding, is bound by reading the weights: those are dot products of our own.
#include <dnnl.h>

#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t kDotRows = 4;       // up to this many rows are dot products
constexpr int64_t kKernelRows = 16;   // from here on a row's result does not depend on the number of rows
constexpr int64_t kTileRows = 512;
constexpr int64_t kTileColumns = 1024;
constexpr int64_t kSmallProduct = int64_t{1} << 18;  // multiply-adds that one thread does faster than two

struct Operand {
  const float* data;
  int64_t stride;
  bool transposed;
};

int64_t smaller_tile(int64_t tile, int64_t least) { return std::max(least, round_up(tile / 2, kKernelRows)); }

// C[M, N] = op(A)[M, K] op(B)[K, N] + keep C. Here M, N, K name the sizes of a product.
void product(int64_t M, int64_t N, int64_t K, Operand a, Operand b, float keep, float* c, int64_t c_stride) {
  if (M == 0 || N == 0) return;
  int64_t tile_rows = std::min(kTileRows, M);
  int64_t tile_columns = std::min(kTileColumns, N);
  // Fewer than kKernelRows rows left below the last whole tile belong to it.
  const auto num_row_tiles = [&] { return std::max<int64_t>(1, (M + tile_rows - kKernelRows) / tile_rows); };
  const auto num_tiles = [&] { return num_row_tiles() * divide_up(N, tile_columns); };
  const int64_t wanted = M * N * K <= kSmallProduct ? 1 : 4 * max_threads();
  while (num_tiles() < wanted && (tile_rows > 64 || tile_columns > 64)) {
    if (tile_columns > tile_rows) {
      tile_columns = smaller_tile(tile_columns, 64);
    } else {
      tile_rows = smaller_tile(tile_rows, 64);
    }
  }
  const int64_t row_tiles = num_row_tiles();
  const int64_t column_tiles = divide_up(N, tile_columns);
  parallel_for(row_tiles * column_tiles, [=](int64_t tile) {
    const int64_t i = tile / column_tiles * tile_rows;
    const int64_t j = tile % column_tiles * tile_columns;
    const int64_t rows = tile / column_tiles == row_tiles - 1 ? M - i : tile_rows;
    const int64_t columns = std::min(tile_columns, N - j);
    dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', rows, columns, K, 1.0F,
               a.data + (a.transposed ? i : i * a.stride), a.stride, b.data + (b.transposed ? j * b.stride : j),
               b.stride, keep, c + i * c_stride + j, c_stride);
  });
}

// kRows rows of y at once, so that each weight is read once.
template <int kRows>
void dot_rows(const ops::LinearForward& args, int64_t first_row) {
  constexpr int64_t kOutputs = 64;  // per task
  const int64_t D = args.weight_XD.size(1);
  const int64_t X = args.weight_XD.size(0);
  const float* weight = args.weight_XD.data<float>();
  const float* bias = args.bias_X.data<float>();
  const int64_t weight_stride = args.weight_XD.stride(0);
  const int64_t x_stride = args.x_RD.stride(0);
  const int64_t y_stride = args.y_RX.stride(0);
  const float* x = args.x_RD.data<float>() + first_row * x_stride;
  float* y = args.y_RX.data<float>() + first_row * y_stride;
  const bool adds = args.y_mode == ops::GradMode::kAccumulate;
  const auto outputs = [=](int64_t task) {
    for (int64_t o = task * kOutputs; o < std::min(X, (task + 1) * kOutputs); ++o) {
      const float* w = weight + o * weight_stride;
      float sums[kRows] = {};
      for (int r = 0; r < kRows; ++r) {
        const float* x_row = x + r * x_stride;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < D; ++d) sum += x_row[d] * w[d];
        sums[r] = sum;
      }
      for (int r = 0; r < kRows; ++r) {
        float* to = y + r * y_stride + o;
        const float value = sums[r] + (bias == nullptr ? 0.0F : bias[o]);
        *to = adds ? *to + value : value;
      }
    }
  };
  if (X * D <= kSmallProduct) {
    for (int64_t task = 0; task < divide_up(X, kOutputs); ++task) outputs(task);
  } else {
    parallel_for(divide_up(X, kOutputs), outputs);
  }
}

}  // namespace

void linear_forward(const Context& context, const ops::LinearForward& args) {
  const int64_t R = args.x_RD.size(0);
  const int64_t D = args.weight_XD.size(1);
  const int64_t X = args.weight_XD.size(0);
  const bool pads = R > kDotRows && R < kKernelRows;
  const Arena::ScratchScope scope(*context.arena);
  float* padded_x = nullptr;
  float* padded_y = nullptr;
  if (pads) {
    padded_x = context.arena->scratch(DType::kF32, {kKernelRows, D}).data<float>();
    padded_y = context.arena->scratch(DType::kF32, {kKernelRows, X}).data<float>();
  }
  if (context.arena->is_planning()) return;
  switch (R) {
    case 1:
      return dot_rows<1>(args, 0);
    case 2:
      return dot_rows<2>(args, 0);
    case 3:
      return dot_rows<3>(args, 0);
    case 4:
      return dot_rows<4>(args, 0);
    default:
      break;
  }

  const float* x = args.x_RD.data<float>();
  const float* bias = args.bias_X.data<float>();
  float* y = args.y_RX.data<float>();
  const int64_t x_stride = args.x_RD.stride(0);
  const int64_t y_stride = args.y_RX.stride(0);
  const bool adds = args.y_mode == ops::GradMode::kAccumulate;
  const Operand weight = {args.weight_XD.data<float>(), args.weight_XD.stride(0), true};
  if (!pads) {
    product(R, X, D, {x, x_stride, false}, weight, adds ? 1.0F : 0.0F, y, y_stride);
    if (bias == nullptr) return;
    parallel_rows(R, X, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* y_row = y + r * y_stride;
#pragma omp simd
        for (int64_t i = 0; i < X; ++i) y_row[i] += bias[i];
      }
    });
    return;
  }
  std::memset(padded_x, 0, static_cast<size_t>(kKernelRows * D) * sizeof(float));
  for (int64_t r = 0; r < R; ++r) {
    std::memcpy(padded_x + r * D, x + r * x_stride, static_cast<size_t>(D) * sizeof(float));
    if (adds) std::memcpy(padded_y + r * X, y + r * y_stride, static_cast<size_t>(X) * sizeof(float));
  }
  if (adds) std::memset(padded_y + R * X, 0, static_cast<size_t>((kKernelRows - R) * X) * sizeof(float));
  product(kKernelRows, X, D, {padded_x, D, false}, weight, adds ? 1.0F : 0.0F, padded_y, X);
  for (int64_t r = 0; r < R; ++r) {
    float* y_row = y + r * y_stride;
    for (int64_t i = 0; i < X; ++i) y_row[i] = padded_y[r * X + i] + (bias == nullptr ? 0.0F : bias[i]);
  }
}

void linear_backward(const Context& context, const ops::LinearBackward& args) {
  const int64_t R = args.dy_RX.size(0);
  const int64_t X = args.dy_RX.size(1);
  const int64_t num_blocks = num_sum_blocks(R);
  const Arena::ScratchScope scope(*context.arena);
  float* partials = nullptr;
  if (args.dbias_X.defined()) partials = context.arena->scratch(DType::kF32, {num_blocks, X}).data<float>();
  if (context.arena->is_planning()) return;
  const float* dy = args.dy_RX.data<float>();
  const int64_t dy_stride = args.dy_RX.stride(0);
  if (args.dx_RD.defined()) {
    product(R, args.dx_RD.size(1), X, {dy, dy_stride, false},
            {args.weight_XD.data<float>(), args.weight_XD.stride(0), false},
            args.dx_mode == ops::GradMode::kAccumulate ? 1.0F : 0.0F, args.dx_RD.data<float>(), args.dx_RD.stride(0));
  }
  const bool keeps = args.dweight_mode == ops::GradMode::kAccumulate;
  if (args.dweight_XD.defined()) {
    product(X, args.dweight_XD.size(1), R, {dy, dy_stride, true}, {args.x_RD.data<float>(), args.x_RD.stride(0), false},
            keeps ? 1.0F : 0.0F, args.dweight_XD.data<float>(), args.dweight_XD.stride(0));
  }
  if (args.dbias_X.defined()) {
    parallel_for(num_blocks, [=](int64_t block) {
      float* sums = partials + block * X;
      std::fill(sums, sums + X, 0.0F);
      for (int64_t r = block * kSumRows; r < std::min(R, (block + 1) * kSumRows); ++r) {
        const float* dy_row = dy + r * dy_stride;
#pragma omp simd
        for (int64_t i = 0; i < X; ++i) sums[i] += dy_row[i];
      }
    });
    float* dbias = args.dbias_X.data<float>();
    if (!keeps) std::fill(dbias, dbias + X, 0.0F);
    add_partial_sums(partials, num_blocks, X, dbias);
  }
}

}  // namespace deltatrain::backend::cpu
