#include "backend/cpu/small_gemm.h"

#include <utility>

namespace deltatrain::backend::cpu {

namespace {

// A block of kRows x (kVectors * 16) of C in registers.
template <int kRows, int kVectors>
inline void multiply_block(Store mode, int64_t K, Matrix a, const float* b, int64_t b_stride,
                           float* c, int64_t c_stride) {
  Lanes sum[kRows][kVectors] = {};
  for (int64_t k = 0; k < K; ++k) {
    Lanes b_row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) b_row[v] = load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Lanes a_ik = broadcast(a.data[i * a.row_stride + k * a.column_stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[i][v] += a_ik * b_row[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + i * c_stride + v * kLanes;
      if (mode == Store::kSet) {
        store(to, sum[i][v]);
      } else if (mode == Store::kAdd) {
        store(to, load(to) + sum[i][v]);
      } else {
        store(to, load(to) - sum[i][v]);
      }
    }
  }
}

template <int kVectors>
inline void multiply_columns(Store mode, int64_t M, int64_t K, Matrix a, const float* b,
                             int64_t b_stride, float* c, int64_t c_stride) {
  int64_t i = 0;
  const auto at = [&](int64_t row) {
    return Matrix{a.data + row * a.row_stride, a.row_stride, a.column_stride};
  };
  for (; i + 8 <= M; i += 8)
    multiply_block<8, kVectors>(mode, K, at(i), b, b_stride, c + i * c_stride, c_stride);
  if (i + 4 <= M) {
    multiply_block<4, kVectors>(mode, K, at(i), b, b_stride, c + i * c_stride, c_stride);
    i += 4;
  }
  for (; i < M; ++i)
    multiply_block<1, kVectors>(mode, K, at(i), b, b_stride, c + i * c_stride, c_stride);
}

// One round of a 16 x 16 transposition: swaps the kStep x kStep squares off the diagonal of every
// 2 kStep x 2 kStep square.
template <int kStep, int... kLane>
inline void swap_squares(Lanes (&rows)[kLanes], std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kStep) != 0) continue;
    const Lanes x = rows[i];
    const Lanes y = rows[i + kStep];
    rows[i] =
        __builtin_shufflevector(x, y, ((kLane & kStep) != 0 ? 16 + (kLane ^ kStep) : kLane)...);
    rows[i + kStep] =
        __builtin_shufflevector(x, y, ((kLane & kStep) != 0 ? 16 + kLane : (kLane ^ kStep))...);
  }
}

inline void transpose_block(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  constexpr auto kEveryLane = std::make_integer_sequence<int, kLanes>{};
  Lanes rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(in + i * in_stride);
  swap_squares<1>(rows, kEveryLane);
  swap_squares<2>(rows, kEveryLane);
  swap_squares<4>(rows, kEveryLane);
  swap_squares<8>(rows, kEveryLane);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(out + i * out_stride, rows[i]);
}

}  // namespace

void small_gemm(Store mode, int64_t M, int64_t N, int64_t K, Matrix a, const float* b,
                int64_t b_stride, float* c, int64_t c_stride) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= N; j += 2 * kLanes)
    multiply_columns<2>(mode, M, K, a, b + j, b_stride, c + j, c_stride);
  if (j < N) multiply_columns<1>(mode, M, K, a, b + j, b_stride, c + j, c_stride);
}

void transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
               int64_t out_stride) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      transpose_block(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
    }
  }
}

}  // namespace deltatrain::backend::cpu
