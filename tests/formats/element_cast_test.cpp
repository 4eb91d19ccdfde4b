#include "formats/element_cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace deltatrain::formats {
namespace {

TEST(ElementCastTest, EveryF16SurvivesTheWayToF32AndBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value)))) << bits;
    } else {
      ASSERT_EQ(f32_to_f16(value), half) << bits;
    }
  }
}

// _Float16 of the compiler is the independent reference.
TEST(ElementCastTest, RoundsToF16AsTheCompilerDoes) {
  uint32_t word = 12345;
  for (int i = 0; i < 2000000; ++i) {
    word = word * 1664525U + 1013904223U;
    float value;
    std::memcpy(&value, &word, sizeof value);
    if (std::isnan(value)) continue;
    const auto expected = static_cast<_Float16>(value);
    uint16_t bits;
    std::memcpy(&bits, &expected, sizeof bits);
    ASSERT_EQ(f32_to_f16(value), bits) << value;
    ASSERT_EQ(f16_to_f32(bits), static_cast<float>(expected)) << value;
  }
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(f32_to_f16(std::ldexp(1.0F, -25)), 0);  // half of the smallest: to even
  EXPECT_EQ(f32_to_f16(std::ldexp(1.5F, -25)), 1);
}

TEST(ElementCastTest, ConvertsUnalignedBlocks) {
  char from[1 + 3 * 4];
  const float values[3] = {1.5F, -0.0F, std::numeric_limits<float>::infinity()};
  std::memcpy(from + 1, values, sizeof values);
  char to[1 + 3 * 8];
  cast_elements(DType::kF32, from + 1, DType::kF64, to + 1, 3);
  double back[3];
  std::memcpy(back, to + 1, sizeof back);
  EXPECT_EQ(back[0], 1.5);
  EXPECT_TRUE(std::signbit(back[1]));
  EXPECT_EQ(back[2], std::numeric_limits<double>::infinity());
  BFloat16 narrow[3];
  cast_elements(DType::kF64, to + 1, DType::kBF16, narrow, 3);
  EXPECT_EQ(narrow[0].bits, 0x3fc0);
  EXPECT_EQ(narrow[1].bits, 0x8000);
}

}  // namespace
}  // namespace deltatrain::formats
