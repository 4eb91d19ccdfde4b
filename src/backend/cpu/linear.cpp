// Products are made in tiles of the output, one thread per tile: each element is then one sum over k
// in an order that does not depend on the number of threads. Nor, as a rule, on the other rows. A
// handful of rows, as in decoding, is bound by reading the weights: those are dot products of our own.
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/tile_product.h"

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t kDotRows = 4;  // up to this many rows are dot products
constexpr int64_t kKernelRows =
    16;  // fewer rows are padded: oneDNN has kernels of its own for them
constexpr int64_t kUnit = 16;
constexpr int64_t kTileRows = 512;  // the fastest tiles, with columns, of those tried
constexpr int64_t kTileColumns = 1024;
constexpr int64_t kWantedTiles =
    8;  // for a few cores; not their number, which must not change a sum
constexpr int64_t kLeastTile = 64;  // smaller ones are not cut
constexpr int64_t kSmallProduct = int64_t{1}
                                  << 18;  // multiply-adds that one thread does faster than two

// An axis cut into `count` tiles of nearly the same size, a multiple of kUnit.
struct Tiling {
  int64_t size;
  int64_t count;

  int64_t tile() const { return round_up(divide_up(size, count), kUnit); }
  int64_t begin(int64_t i) const { return std::min(size, i * tile()); }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
};

// C[M, N] = op(A)[M, K] op(B)[K, N] + keep C. Here M, N, K name the sizes of a product.
void product(int64_t M, int64_t N, int64_t K, Operand a, Operand b, float keep, float* c,
             int64_t c_stride) {
  if (M == 0 || N == 0) return;
  Tiling rows = {M, divide_up(M, kTileRows)};
  Tiling columns = {N, divide_up(N, kTileColumns)};
  while (rows.count * columns.count < kWantedTiles && M * N * K > kSmallProduct) {
    Tiling& larger = columns.tile() > rows.tile() ? columns : rows;
    if (larger.tile() <= kLeastTile) break;
    larger.count *= 2;
  }
  const auto compute_tile = [=](int64_t tile) {
    const int64_t i = rows.begin(tile / columns.count);
    const int64_t j = columns.begin(tile % columns.count);
    const int64_t num_rows = rows.length(tile / columns.count);
    const int64_t num_columns = columns.length(tile % columns.count);
    if (num_rows <= 0 || num_columns <= 0) return;
    tile_product({num_rows,
                  num_columns,
                  K,
                  {a.data + (a.transposed ? i : i * a.stride), a.stride, a.transposed},
                  {b.data + (b.transposed ? j * b.stride : j), b.stride, b.transposed},
                  keep,
                  c + i * c_stride + j,
                  c_stride});
  };
  if (rows.count * columns.count == 1) {
    // Outside of a parallel region oneDNN would split the sum over k among threads of its own.
    const int threads = max_threads();
    omp_set_num_threads(1);
    compute_tile(0);
    omp_set_num_threads(threads);
  } else {
    parallel_for(rows.count * columns.count, compute_tile);
  }
}

// x_r . w for kRows rows at once, so that each weight is loaded once.
template <int kRows>
inline void dots(const float* w, const float* x, int64_t x_stride, int64_t D, float* sums) {
  Lanes even[kRows] = {};
  Lanes odd[kRows] = {};
  int64_t d = 0;
  for (; d + 2 * kLanes <= D; d += 2 * kLanes) {
    const Lanes w_even = load(w + d);
    const Lanes w_odd = load(w + d + kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      even[r] += w_even * load(x + r * x_stride + d);
      odd[r] += w_odd * load(x + r * x_stride + d + kLanes);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float sum = sum_of(even[r] + odd[r]);
    for (int64_t i = d; i < D; ++i) sum += w[i] * x[r * x_stride + i];
    sums[r] = sum;
  }
}

// kRows rows of y at once.
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
      float sums[kRows];
      dots<kRows>(weight + o * weight_stride, x, x_stride, D, sums);
      for (int r = 0; r < kRows; ++r) {
        float* to = y + r * y_stride + o;
        const float value = sums[r] + (bias == nullptr ? 0.0F : bias[o]);
        *to = adds ? *to + value : value;
      }
    }
  };
  parallel_for(divide_up(X, kOutputs), outputs, X * D > kSmallProduct);
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
    if (adds)
      std::memcpy(padded_y + r * X, y + r * y_stride, static_cast<size_t>(X) * sizeof(float));
  }
  if (adds)
    std::memset(padded_y + R * X, 0, static_cast<size_t>((kKernelRows - R) * X) * sizeof(float));
  product(kKernelRows, X, D, {padded_x, D, false}, weight, adds ? 1.0F : 0.0F, padded_y, X);
  for (int64_t r = 0; r < R; ++r) {
    float* y_row = y + r * y_stride;
    for (int64_t i = 0; i < X; ++i)
      y_row[i] = padded_y[r * X + i] + (bias == nullptr ? 0.0F : bias[i]);
  }
}

void linear_backward(const Context& context, const ops::LinearBackward& args) {
  const int64_t R = args.dy_RX.size(0);
  const int64_t X = args.dy_RX.size(1);
  const int64_t num_blocks = num_sum_blocks(R);
  const Arena::ScratchScope scope(*context.arena);
  float* partials = nullptr;
  if (args.dbias_X.defined())
    partials = context.arena->scratch(DType::kF32, {num_blocks, X}).data<float>();
  if (context.arena->is_planning()) return;
  const float* dy = args.dy_RX.data<float>();
  const int64_t dy_stride = args.dy_RX.stride(0);
  if (args.dx_RD.defined()) {
    product(R, args.dx_RD.size(1), X, {dy, dy_stride, false},
            {args.weight_XD.data<float>(), args.weight_XD.stride(0), false},
            args.dx_mode == ops::GradMode::kAccumulate ? 1.0F : 0.0F, args.dx_RD.data<float>(),
            args.dx_RD.stride(0));
  }
  const bool keeps = args.dweight_mode == ops::GradMode::kAccumulate;
  if (args.dweight_XD.defined()) {
    product(X, args.dweight_XD.size(1), R, {dy, dy_stride, true},
            {args.x_RD.data<float>(), args.x_RD.stride(0), false}, keeps ? 1.0F : 0.0F,
            args.dweight_XD.data<float>(), args.dweight_XD.stride(0));
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
