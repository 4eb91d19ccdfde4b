// Products of one thread, which linear.cpp calls for tiles of the output.
#pragma once

#include <cstdint>

namespace deltatrain::backend::cpu {

// A matrix of f32 in rows of `stride` elements; transposed: the product takes its transpose.
struct Operand {
  const float* data;
  int64_t stride;
  bool transposed;
};

// C[M, N] = op(A)[M, K] op(B)[K, N] + keep C, all f32, on the calling thread alone; C lies in rows of
// `c_stride`. With keep = 0 C is not read. M, N, K name the sizes of the product here.
struct TileProduct {
  int64_t M, N, K;
  Operand a, b;
  float keep;
  float* c;
  int64_t c_stride;
};

// oneDNN's sgemm for long sums on processors with AVX-512 (tile_product_dnnl.cpp); otherwise, and in a program without
// it, packed_product. Which one takes a product depends on K alone.
void tile_product(const TileProduct& args);

// Plain C++: blocks of both operands are copied into the order in which the innermost loop reads them.
// An element of C is summed over k in one order, which does not depend on M and N: a sum of sums over 32 k
// each. Takes 360 KiB of the thread's stack.
void packed_product(const TileProduct& args);

}  // namespace deltatrain::backend::cpu
