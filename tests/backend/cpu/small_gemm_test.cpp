// Products of small matrices against sums in double.
#include "backend/cpu/small_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "base/random.h"

namespace deltatrain::test {
namespace {

using backend::cpu::Matrix;
using backend::cpu::Store;

std::vector<float> normal(int64_t count, uint64_t seed) {
  const RandomStream random(seed, "small_gemm");
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.normal(i));
  return values;
}

constexpr float kGuard = 123.0F;

// C before is `c`; rows of B and C lie further apart than they are long, and what lies between stays.
void expect_product(Store mode, int64_t M, int64_t N, int64_t K, bool by_columns) {
  const int64_t b_stride = N + 5, c_stride = N + 3;
  const std::vector<float> a = normal(M * K, 1), b = normal(K * b_stride, 2);
  std::vector<float> c = normal(M * c_stride, 3);
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t n = N; n < c_stride; ++n) c[static_cast<size_t>(i * c_stride + n)] = kGuard;
  }
  const std::vector<float> before = c;
  const Matrix left =
      by_columns ? backend::cpu::by_columns(a.data(), M) : backend::cpu::by_rows(a.data(), K);
  backend::cpu::small_gemm(mode, M, N, K, left, b.data(), b_stride, c.data(), c_stride);
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t n = 0; n < c_stride; ++n) {
      const auto at = static_cast<size_t>(i * c_stride + n);
      if (n >= N) {
        ASSERT_EQ(c[at], kGuard);
        continue;
      }
      double want = 0, size = std::abs(before[at]);
      for (int64_t k = 0; k < K; ++k) {
        const double product =
            static_cast<double>(a[static_cast<size_t>(by_columns ? k * M + i : i * K + k)]) *
            b[static_cast<size_t>(k * b_stride + n)];
        want += product;
        size += std::abs(product);
      }
      if (mode == Store::kAdd) want = before[at] + want;
      if (mode == Store::kSubtract) want = before[at] - want;
      // K roundings, each of a partial sum that is at most `size`.
      ASSERT_NEAR(c[at], want, static_cast<double>(K + 1) * size * 0x1p-24)
          << "row " << i << ", column " << n;
    }
  }
}

TEST(SmallGemmTest, EveryNumberOfRowsAndVectorsOfEveryStore) {
  for (const Store mode : {Store::kSet, Store::kAdd, Store::kSubtract}) {
    for (const bool by_columns : {false, true}) {
      for (int64_t M = 1; M <= 18; ++M) {
        for (const int64_t N : {16, 32, 48}) {
          for (const int64_t K : {0, 1, 7, 64}) {
            SCOPED_TRACE(testing::Message()
                         << M << " x " << N << " x " << K << ", mode " << static_cast<int>(mode)
                         << ", by_columns " << by_columns);
            expect_product(mode, M, N, K, by_columns);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(SmallGemmTest, RowsDoNotDependOnRowsBeside) {
  constexpr int64_t kN = 32, kK = 24;
  const std::vector<float> a = normal(16 * kK, 1), b = normal(kK * kN, 2);
  std::vector<float> all(16 * kN), one(kN);
  backend::cpu::small_gemm(Store::kSet, 16, kN, kK, backend::cpu::by_rows(a.data(), kK), b.data(),
                           kN, all.data(), kN);
  for (int64_t i = 0; i < 16; ++i) {
    backend::cpu::small_gemm(Store::kSet, 1, kN, kK, backend::cpu::by_rows(a.data() + i * kK, kK),
                             b.data(), kN, one.data(), kN);
    for (int64_t n = 0; n < kN; ++n)
      ASSERT_EQ(one[static_cast<size_t>(n)], all[static_cast<size_t>(i * kN + n)])
          << i << ", " << n;
  }
}

TEST(SmallGemmTest, TransposeMovesEveryElement) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{16, 16}, {16, 48}, {64, 32}}) {
    const int64_t in_stride = columns + 7, out_stride = rows + 2;
    std::vector<float> in(static_cast<size_t>(rows * in_stride)),
        out(static_cast<size_t>(columns * out_stride), kGuard);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    backend::cpu::transpose(in.data(), in_stride, rows, columns, out.data(), out_stride);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < out_stride; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(j * out_stride + i)],
                  i < rows ? static_cast<float>(i * in_stride + j) : kGuard)
            << rows << " x " << columns << ": row " << i << ", column " << j;
      }
    }
  }
}

}  // namespace
}  // namespace deltatrain::test
