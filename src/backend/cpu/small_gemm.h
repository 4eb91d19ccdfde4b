// Products of small matrices in f32 on one thread, for tiles that live in the first cache levels.
//
//   C[M, N] = A[M, K] B[K, N]     (kAdd: C += A B, kSubtract: C -= A B)
//
// M, N, K: sizes of one product. A is read element by element through two strides, so it may be
// stored either way round; B and C are row-major. Each element of C is one sum over k in ascending
// order, so a row of C does not depend on the other rows.
#pragma once

#include <cstdint>

#include "backend/cpu/lanes.h"

namespace deltatrain::backend::cpu {

enum class Store : uint8_t { kSet, kAdd, kSubtract };

struct Matrix {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

inline Matrix by_rows(const float* data, int64_t row_stride) { return {data, row_stride, 1}; }
// The transpose of a row-major matrix.
inline Matrix by_columns(const float* data, int64_t row_stride) { return {data, 1, row_stride}; }

// N is a multiple of kLanes; rows of B and C have at least N elements.
void small_gemm(Store store, int64_t M, int64_t N, int64_t K, Matrix a, const float* b,
                int64_t b_stride, float* c, int64_t c_stride);

// out[j][i] = in[i][j]; rows and columns are multiples of kLanes.
void transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
               int64_t out_stride);

}  // namespace deltatrain::backend::cpu
