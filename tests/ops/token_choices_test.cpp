#include "ops/token_choices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"

namespace deltatrain::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Wish {
  int32_t given = -1;
  double temperature = 1, top_p = 1, uniform = 0;
  int32_t top_k = 0, num_top = 0;
};

struct Choices {
  std::vector<int32_t> ids, top_ids;
  std::vector<float> logits, lse, top_logits;
};

// On a backend whose memory is the host's. Every wish has a row of N logits.
Choices choices_of(std::vector<float> logits, int64_t N, const std::vector<Wish>& wishes,
                   int64_t X = 4, DeviceKind kind = DeviceKind::kCpu) {
  const auto backend = backend::make_backend(kind);
  Arena arena;
  const auto R = static_cast<int64_t>(wishes.size());
  const auto rows = static_cast<size_t>(R), tops = static_cast<size_t>(R * X);
  Choices out{std::vector<int32_t>(rows, 77), std::vector<int32_t>(tops, 77),
              std::vector<float>(rows, 77), std::vector<float>(rows, 77),
              std::vector<float>(tops, 77)};
  std::vector<int32_t> given, top_k, num_top;
  std::vector<double> temperature, top_p, uniform;
  for (const Wish& wish : wishes) {
    given.push_back(wish.given);
    top_k.push_back(wish.top_k);
    num_top.push_back(wish.num_top);
    temperature.push_back(wish.temperature);
    top_p.push_back(wish.top_p);
    uniform.push_back(wish.uniform);
  }
  const auto integers = [R](std::vector<int32_t>& values) {
    return Tensor(values.data(), DType::kI32, {R});
  };
  const auto numbers = [R](std::vector<double>& values) {
    return Tensor(values.data(), DType::kF64, {R});
  };
  token_choices(backend->context(arena, DType::kF32),
                {.logits_RN = Tensor(logits.data(), DType::kF32,
                                     {static_cast<int64_t>(logits.size()) / N, N}),
                 .given_R = integers(given),
                 .temperature_R = numbers(temperature),
                 .top_p_R = numbers(top_p),
                 .uniform_R = numbers(uniform),
                 .top_k_R = integers(top_k),
                 .num_top_R = integers(num_top),
                 .id_R = integers(out.ids),
                 .logit_R = Tensor(out.logits.data(), DType::kF32, {R}),
                 .lse_R = Tensor(out.lse.data(), DType::kF32, {R}),
                 .top_ids_RX = Tensor(out.top_ids.data(), DType::kI32, {R, X}),
                 .top_logits_RX = Tensor(out.top_logits.data(), DType::kF32, {R, X})});
  return out;
}

// One row of logits, drawn from in many ways.
std::vector<int32_t> drawn(const std::vector<float>& row, const std::vector<Wish>& wishes,
                           DeviceKind kind) {
  std::vector<float> logits;
  for (size_t i = 0; i < wishes.size(); ++i) logits.insert(logits.end(), row.begin(), row.end());
  return choices_of(logits, static_cast<int64_t>(row.size()), wishes, 4, kind).ids;
}

class TokenChoicesTest : public testing::TestWithParam<DeviceKind> {};

// Probabilities 1/8, 1/2, 1/4, 1/8 in this order: borders at 0.125, 0.625 and 0.875.
const std::vector<float> kEighths = {std::log(0.125F), std::log(0.5F), std::log(0.25F),
                                     std::log(0.125F)};

TEST_P(TokenChoicesTest, DrawsByTheSharesInOrderOfIds) {
  EXPECT_EQ(drawn(kEighths,
                  {{.uniform = 0},
                   {.uniform = 0.1249},
                   {.uniform = 0.1251},
                   {.uniform = 0.6249},
                   {.uniform = 0.6251},
                   {.uniform = 0.8749},
                   {.uniform = 0.8751},
                   {.uniform = std::nextafter(1.0, 0.0)}},
                  GetParam()),
            (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 3, 3}));
}

// Logits over 1/2: shares square, to 1/64, 1/4, 1/16, 1/64 over 22/64.
TEST_P(TokenChoicesTest, TemperatureIsAPowerOfTheShares) {
  EXPECT_EQ(drawn(kEighths,
                  {{.temperature = 0.5, .uniform = 1 / 22.0 - 1e-3},
                   {.temperature = 0.5, .uniform = 1 / 22.0 + 1e-3},
                   {.temperature = 0.5, .uniform = 17 / 22.0 - 1e-3},
                   {.temperature = 0.5, .uniform = 17 / 22.0 + 1e-3},
                   {.temperature = 0, .uniform = 0.999},
                   {.temperature = 1e-320, .uniform = 0.999}},
                  GetParam()),
            (std::vector<int32_t>{0, 1, 1, 2, 1, 1}));
}

// Of two eighths the first is kept. The kept ones share the draw by id: 1/8 : 1/2 : 1/4.
TEST_P(TokenChoicesTest, TopKAndTopPKeepTheFirstOfTheOrder) {
  EXPECT_EQ(drawn(kEighths,
                  {{.uniform = 0, .top_k = 1},
                   {.uniform = 0.999, .top_k = 1},
                   {.uniform = 0, .top_k = 2},
                   {.uniform = 0.67, .top_k = 2},
                   {.uniform = 0.14, .top_k = 3},
                   {.uniform = 0.15, .top_k = 3},
                   {.uniform = 0.999, .top_k = 3},
                   {.uniform = 0.999, .top_k = 9}},
                  GetParam()),
            (std::vector<int32_t>{1, 1, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(drawn(kEighths,
                  {{.top_p = 0, .uniform = 0.999},
                   {.top_p = 0.49, .uniform = 0.999},
                   {.top_p = 0.51, .uniform = 0.999},
                   {.top_p = 0.74, .uniform = 0},
                   {.top_p = 0.76, .uniform = 0},
                   {.top_p = 0.87, .uniform = 0.999},
                   {.top_p = 0.88, .uniform = 0.999},
                   // Two of three quarters: the half alone has 2/3 of them.
                   {.top_p = 0.66, .uniform = 0.999, .top_k = 2},
                   {.top_p = 0.67, .uniform = 0.999, .top_k = 2}},
                  GetParam()),
            (std::vector<int32_t>{1, 1, 2, 1, 0, 2, 3, 1, 2}));
}

TEST_P(TokenChoicesTest, TellsLogitsAndTheMostLikely) {
  const Choices got =
      choices_of({1, 3, 3, 2, -kInfinity, 0, 5, 0, 0, 0}, 5,
                 {{.given = 4, .num_top = 3}, {.temperature = 0, .num_top = 4}}, 4, GetParam());
  EXPECT_EQ(got.ids, (std::vector<int32_t>{4, 1}));
  EXPECT_EQ(got.logits, (std::vector<float>{-kInfinity, 5}));
  EXPECT_NEAR(got.lse[0], std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0)), 1e-6);
  EXPECT_NEAR(got.lse[1], std::log(4 + std::exp(5.0)), 1e-6);
  EXPECT_EQ(got.top_ids, (std::vector<int32_t>{1, 2, 3, -1, 1, 0, 2, 3}));
  EXPECT_EQ(got.top_logits, (std::vector<float>{3, 3, 2, 0, 5, 0, 0, 0}));
}

TEST_P(TokenChoicesTest, RowsThatAreNotNumbersHaveNone) {
  const Choices got =
      choices_of({1, NAN, 0, kInfinity, -kInfinity, -kInfinity}, 2,
                 {{.given = 0, .num_top = 2}, {.num_top = 1}, {.temperature = 0}}, 2, GetParam());
  EXPECT_EQ(got.ids, (std::vector<int32_t>{-1, -1, -1}));
  EXPECT_EQ(got.top_ids, (std::vector<int32_t>{-1, -1, -1, -1, -1, -1}));
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(std::isnan(got.logits[r])) << r;
    EXPECT_TRUE(std::isnan(got.lse[r])) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TokenChoicesTest,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kReference));

TEST(TokenChoicesArgumentsTest, RefusesMoreOfTheMostLikelyThanThereIsRoomFor) {
  EXPECT_THROW(choices_of({1, 2}, 2, {{}}, kMaxTopTokens + 1), ShapeError);
  EXPECT_THROW(choices_of({1, 2}, 2, {{}, {}}), ShapeError);
}

}  // namespace
}  // namespace deltatrain::ops
