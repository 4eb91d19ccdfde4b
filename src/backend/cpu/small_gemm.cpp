#include "backend/cpu/small_gemm.h"

#include "backend/cpu/transposition.h"

namespace deltatrain::backend::cpu {

namespace {

// Of one block of C: as many sums as the registers hold beside a row of B and an element of A.
constexpr int kBlockRows = kRegisters == 1 ? 8 : kRegisters == 2 ? 6 : 3;
constexpr int kBlockVectors = kRegisters == 1 ? 2 : 1;

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
      const float a_ik = a.data[i * a.row_stride + k * a.column_stride];
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

template <int kRows, int kVectors>
inline void multiply_columns(Store mode, int64_t M, int64_t K, Matrix a, const float* b,
                             int64_t b_stride, float* c, int64_t c_stride) {
  int64_t i = 0;
  for (; i + kRows <= M; i += kRows) {
    multiply_block<kRows, kVectors>(mode, K,
                                    {a.data + i * a.row_stride, a.row_stride, a.column_stride}, b,
                                    b_stride, c + i * c_stride, c_stride);
  }
  constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
  if constexpr (kFewer > 0) {
    if (i < M) {
      multiply_columns<kFewer, kVectors>(mode, M - i, K,
                                         {a.data + i * a.row_stride, a.row_stride, a.column_stride},
                                         b, b_stride, c + i * c_stride, c_stride);
    }
  }
}

inline void transpose_square(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  Register rows[kRegisterLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kRegisterLanes; ++i) rows[i] = load_register(in + i * in_stride);
  transpose_registers(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kRegisterLanes; ++i) store_register(out + i * out_stride, rows[i]);
}

}  // namespace

void small_gemm(Store mode, int64_t M, int64_t N, int64_t K, Matrix a, const float* b,
                int64_t b_stride, float* c, int64_t c_stride) {
  int64_t j = 0;
  for (; j + kBlockVectors * kLanes <= N; j += kBlockVectors * kLanes)
    multiply_columns<kBlockRows, kBlockVectors>(mode, M, K, a, b + j, b_stride, c + j, c_stride);
  if (j < N) multiply_columns<kBlockRows, 1>(mode, M, K, a, b + j, b_stride, c + j, c_stride);
}

void transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
               int64_t out_stride) {
  for (int64_t i = 0; i < rows; i += kRegisterLanes) {
    for (int64_t j = 0; j < columns; j += kRegisterLanes)
      transpose_square(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
  }
}

}  // namespace deltatrain::backend::cpu
