// The packed product against plain sums in double: all four layouts, sizes on both sides of every
// block, rows of C that are longer than N.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/tile_product.h"
#include "base/random.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

namespace cpu = backend::cpu;

struct Matrix {
  int64_t rows, columns, stride;
  std::vector<float> values;

  Matrix(int64_t num_rows, int64_t num_columns, uint64_t seed)
      : rows(num_rows),
        columns(num_columns),
        stride(num_columns + 3),
        values(static_cast<size_t>(num_rows * stride), std::numeric_limits<float>::quiet_NaN()) {
    const RandomStream random(seed, "packed_product");
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        at(i, j) = static_cast<float>(random.normal(static_cast<uint64_t>(i * columns + j)));
    }
  }
  float& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * stride + j)]; }
  float at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * stride + j)]; }
};

struct Sizes {
  int64_t M, N, K;
};

class PackedProductTest : public testing::TestWithParam<Sizes> {};

TEST_P(PackedProductTest, EqualsSumsInDoubleInEveryLayout) {
  const auto [M, N, K] = GetParam();
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      for (const float keep : {0.0F, 1.0F}) {
        const Matrix a(a_transposed ? K : M, a_transposed ? M : K, 1);
        const Matrix b(b_transposed ? N : K, b_transposed ? K : N, 2);
        Matrix c(M, N, 3);
        const Matrix before = c;
        if (keep == 0) std::fill(c.values.begin(), c.values.end(), std::nanf(""));
        cpu::packed_product({M,
                             N,
                             K,
                             {a.values.data(), a.stride, a_transposed},
                             {b.values.data(), b.stride, b_transposed},
                             keep,
                             c.values.data(),
                             c.stride});
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < M; ++i) {
          for (int64_t j = 0; j < N; ++j) {
            double want = keep == 0 ? 0 : before.at(i, j);
            for (int64_t k = 0; k < K; ++k) {
              want += static_cast<double>(a_transposed ? a.at(k, i) : a.at(i, k)) *
                      static_cast<double>(b_transposed ? b.at(j, k) : b.at(k, j));
            }
            difference += std::pow(static_cast<double>(c.at(i, j)) - want, 2);
            norm += want * want;
          }
          for (int64_t j = N; j < c.stride; ++j)
            EXPECT_TRUE(std::isnan(c.at(i, j))) << "written behind row " << i;
        }
        EXPECT_LE(std::sqrt(difference),
                  verify::tolerance(DType::kF32, verify::Quantity::kProduct) * std::sqrt(norm))
            << "A " << (a_transposed ? "" : "not ") << "transposed, B "
            << (b_transposed ? "" : "not ") << "transposed, keep " << keep;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PackedProductTest,
                         testing::Values(Sizes{1, 1, 1}, Sizes{7, 5, 0}, Sizes{6, 16, 256},
                                         Sizes{13, 17, 257}, Sizes{97, 33, 63}, Sizes{96, 256, 64},
                                         Sizes{200, 300, 30}, Sizes{5, 257, 600}),
                         [](const auto& param_info) {
                           return std::to_string(param_info.param.M) + "x" +
                                  std::to_string(param_info.param.N) + "x" +
                                  std::to_string(param_info.param.K);
                         });

TEST(PackedProductBitsTest, RowsAndColumnsBesideAnElementDoNotChangeIt) {
  const Matrix a(150, 300, 1);
  const Matrix b(300, 290, 2);
  Matrix whole(150, 290, 3), part(150, 290, 4);
  const cpu::Operand left = {a.values.data(), a.stride, false};
  const cpu::Operand right = {b.values.data(), b.stride, false};
  cpu::packed_product({150, 290, 300, left, right, 0, whole.values.data(), whole.stride});
  cpu::packed_product({1, 1, 300, left, right, 0, part.values.data(), part.stride});
  EXPECT_EQ(part.at(0, 0), whole.at(0, 0));
  cpu::packed_product({11,
                       20,
                       300,
                       {&a.values[static_cast<size_t>(139 * a.stride)], a.stride, false},
                       {&b.values[270], b.stride, false},
                       0,
                       part.values.data(),
                       part.stride});
  for (int64_t i = 0; i < 11; ++i) {
    for (int64_t j = 0; j < 20; ++j) EXPECT_EQ(part.at(i, j), whole.at(139 + i, 270 + j));
  }
}

}  // namespace

}  // namespace deltatrain::test
