#include "base/torch_random.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "base/files.h"
#include "base/hash.h"
#include "support/test_files.h"

namespace deltatrain {

namespace internal {
void torch_box_muller_plain(float* d, int64_t num_blocks, float mean, float std);
}  // namespace internal

namespace {

const nlohmann::json& golden() {
  static const auto values = nlohmann::json::parse(read_file(test::golden_path("torch_rng.json")));
  return values;
}

template <class T>
std::string sha256(const std::vector<T>& values) {
  Sha256 digest;
  digest.update(values.data(), values.size() * sizeof(T));
  return digest.hex();
}

TEST(TorchGeneratorTest, EngineIsTheStandardMersenneTwister) {
  std::mt19937 standard(42);
  TorchGenerator generator(42);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(generator.random(), standard()) << i;
  generator.discard(1999);
  standard.discard(1999);
  EXPECT_EQ(generator.random(), standard());
  TorchGenerator wide((uint64_t{7} << 32) | 42U);  // only the low half counts
  EXPECT_EQ(wide.random(), 1608637542U);
}

class TorchGoldenTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(TorchGoldenTest, EqualsTorchBitForBit) {
  const int64_t n = GetParam();
  const std::string suffix = std::to_string(n);
  std::vector<float> values(static_cast<size_t>(n));
  TorchGenerator(42).normal(values.data(), n, 0.0, 0.02);
  EXPECT_EQ(sha256(values), golden()["normal_" + suffix]["sha256"]);
  TorchGenerator(42).uniform(values.data(), n, 1, 16);
  EXPECT_EQ(sha256(values), golden()["uniform_1_16_" + suffix]["sha256"]);
  TorchGenerator(42).uniform(values.data(), n, 0, 1);
  EXPECT_EQ(sha256(values), golden()["rand_" + suffix]["sha256"]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TorchGoldenTest,
                         ::testing::Values(1, 5, 15, 16, 17, 31, 100, 1000, 100003));

TEST(TorchGeneratorTest, MixedCallsKeepTheStreamAndTheCachedNormal) {
  TorchGenerator generator(42);
  const auto expect = [](const std::vector<float>& got, const nlohmann::json& want) {
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(static_cast<double>(got[i]), want[i].get<double>()) << i;
  };
  const auto& sequence = golden()["mixed_sequence"];
  std::vector<float> values(7);
  generator.normal(values.data(), 7, 0, 1);
  expect(values, sequence[0]);
  values.resize(3);
  generator.uniform(values.data(), 3, 0, 1);
  expect(values, sequence[1]);
  values.resize(20);
  generator.normal(values.data(), 20, 0, 1);
  expect(values, sequence[2]);
  values.resize(1);
  generator.normal(values.data(), 1, 0, 1);
  expect(values, sequence[3]);
  generator.uniform(values.data(), 1, 0, 1);
  expect(values, sequence[4]);
}

TEST(TorchGeneratorTest, DiscardNormalLeavesTheSameStream) {
  for (const int64_t n : {3, 16, 17, 1000, 12345}) {
    TorchGenerator drawn(7);
    TorchGenerator skipped(7);
    std::vector<float> values(static_cast<size_t>(n));
    drawn.normal(values.data(), n, 0, 1);
    skipped.discard_normal(n);
    std::vector<float> a(20);
    std::vector<float> b(20);
    for (const int64_t next : {1, 20}) {
      drawn.normal(a.data(), next, 0, 1);
      skipped.normal(b.data(), next, 0, 1);
      ASSERT_EQ(a, b) << n;
    }
  }
}

TEST(TorchGeneratorTest, RandpermEqualsTorch) {
  for (const int64_t n : {1, 10, 1000, 100000}) {
    EXPECT_EQ(sha256(TorchGenerator(42).randperm(n)),
              golden()["randperm_" + std::to_string(n)]["sha256_int64"]);
  }
  EXPECT_TRUE(TorchGenerator(42).randperm(0).empty());
}

TEST(TorchGeneratorTest, VectorAndPlainFormsAgree) {
  constexpr int64_t kCount = 16 * 100000;
  std::vector<float> plain(kCount);
  std::vector<float> vector(kCount);
  TorchGenerator(3).uniform(plain.data(), kCount, 0, 1);
  internal::torch_box_muller_plain(plain.data(), kCount / 16, 0.5F, 2.0F);
  TorchGenerator(3).normal(vector.data(), kCount, 0.5, 2.0);
  EXPECT_EQ(std::memcmp(plain.data(), vector.data(), sizeof(float) * kCount), 0);
  // The ends of the uniform range, which a stream hardly ever shows.
  std::vector<float> ends(16, 0.0F);
  for (size_t i = 0; i < 8; ++i) {
    ends[i] = i % 2 == 0 ? 0.0F : 1.0F - 0x1p-24F;
    ends[i + 8] = static_cast<float>(i) / 8;
  }
  internal::torch_box_muller_plain(ends.data(), 1, 0, 1);
  for (const float value : ends) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace deltatrain
