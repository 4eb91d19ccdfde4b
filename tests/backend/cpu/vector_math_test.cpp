// The f32 functions against double over their whole range,
// in units of the last place of the f32 result.
#include "backend/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltatrain::test {

namespace {

namespace cpu = backend::cpu;

// |got - want| in units of the last place of want;
// the unit is never below that of the smallest normal.
double error_in_ulp(float got, double want) {
  if (std::isinf(static_cast<float>(want))) return got == static_cast<float>(want) ? 0 : 1e30;
  const double magnitude =
      std::max(std::abs(want), static_cast<double>(std::numeric_limits<float>::min()));
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// Every argument of a fine grid over [low, high], with its neighbours in f32.
template <class F, class G>
double worst_ulp(double low, double high, F function, G exact) {
  double worst = 0;
  constexpr int kSteps = 200000;
  for (int i = 0; i <= kSteps; ++i) {
    const auto x = static_cast<float>(low + (high - low) * i / kSteps);
    worst = std::max(worst, error_in_ulp(function(x), exact(static_cast<double>(x))));
  }
  return worst;
}

double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double exact_softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

TEST(VectorMathTest, ExpIsAccurateOverTheWholeRange) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulp(-110, 95, cpu::exp_f32, exact), 2.0);
  EXPECT_LE(worst_ulp(-1, 1, cpu::exp_f32, exact), 2.0);
  EXPECT_LE(worst_ulp(-1e-6, 1e-6, cpu::exp_f32, exact), 1.0);
}

TEST(VectorMathTest, ExpOfExtremesIsExact) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::exp_f32(0.0F), 1.0F);
  EXPECT_EQ(cpu::exp_f32(-infinity), 0.0F);
  EXPECT_EQ(cpu::exp_f32(-1e30F), 0.0F);
  EXPECT_EQ(cpu::exp_f32(-20480.0F), 0.0F);
  EXPECT_EQ(cpu::exp_f32(infinity), infinity);
  EXPECT_EQ(cpu::exp_f32(1e30F), infinity);
  EXPECT_TRUE(std::isnan(cpu::exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMathTest, SigmoidIsAccurateOverTheWholeRange) {
  EXPECT_LE(worst_ulp(-87, 100, cpu::sigmoid_f32, exact_sigmoid), 4.0);
  EXPECT_LE(worst_ulp(-4, 4, cpu::sigmoid_f32, exact_sigmoid), 4.0);
  EXPECT_EQ(cpu::sigmoid_f32(-1e30F), 0.0F);
  EXPECT_EQ(cpu::sigmoid_f32(1e30F), 1.0F);
}

TEST(VectorMathTest, SiluIsAccurateOverTheWholeRange) {
  const auto exact = [](double x) { return x * exact_sigmoid(x); };
  EXPECT_LE(worst_ulp(-87, 100, cpu::silu_f32, exact), 4.0);
  EXPECT_LE(worst_ulp(-1, 1, cpu::silu_f32, exact), 4.0);
  EXPECT_EQ(cpu::silu_f32(-1e30F), 0.0F);
  EXPECT_EQ(cpu::silu_f32(1e30F), 1e30F);
}

TEST(VectorMathTest, SoftplusIsRelativelyAccurateForVeryNegativeArguments) {
  EXPECT_LE(worst_ulp(-100, -10, cpu::softplus_f32, exact_softplus), 4.0);
  EXPECT_LE(worst_ulp(-10, 10, cpu::softplus_f32, exact_softplus), 4.0);
  EXPECT_LE(worst_ulp(10, 200, cpu::softplus_f32, exact_softplus), 1.0);
  EXPECT_EQ(cpu::softplus_f32(1e30F), 1e30F);
  EXPECT_EQ(cpu::softplus_f32(-1e30F), 0.0F);
}

TEST(VectorMathTest, Log1pIsRelativelyAccurateDownToTheSmallestArgument) {
  const auto exact = [](double e) { return std::log1p(e); };
  EXPECT_LE(worst_ulp(0, 1, cpu::log1p_of_unit_f32, exact), 4.0);
  EXPECT_LE(worst_ulp(0, 1e-10, cpu::log1p_of_unit_f32, exact), 4.0);
}

}  // namespace

}  // namespace deltatrain::test
