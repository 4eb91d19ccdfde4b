#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "backend/registry.h"
#include "ops/elementwise.h"

namespace deltatrain::ops {
namespace {

class ChecksumTest : public testing::TestWithParam<DeviceKind> {
 protected:
  uint64_t of(const std::vector<int32_t>& words, uint64_t before = 0) {
    const auto backend = backend::make_backend(GetParam());
    Arena arena;
    const Context context = backend->context(arena, DType::kF32);
    Device& device = backend->device();
    const Buffer x(device.memory(), words.size() * 4), result(device.memory(), 8);
    device.copy_to_device(x.data(), words.data(), words.size() * 4);
    device.copy_to_device(result.data(), &before, 8);
    checksum(context, {x.tensor(DType::kI32, {static_cast<int64_t>(words.size())}),
                       static_cast<uint64_t*>(result.data())});
    device.copy_to_host(&before, result.data(), 8);
    return before;
  }
};

// Words of zero give the sequence of SplitMix64 with seed 0, whose first outputs are published
// (Vigna, splitmix64.c; also the seeds in Java's SplittableRandom).
TEST_P(ChecksumTest, ZerosGiveTheSequenceOfSplitMix64) {
  EXPECT_EQ(of({0}), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(of({0, 0}), 0xE220A8397B1DCDAFU + 0x6E789E6AA1B965F4U);
  EXPECT_EQ(of({0, 0, 0}, 5), 5 + 0xE220A8397B1DCDAFU + 0x6E789E6AA1B965F4U + 0x06C45D188009454FU);
}

TEST_P(ChecksumTest, SeesEveryBitAndEveryPlace) {
  std::vector<int32_t> words(300);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<int32_t>(i * 2654435761U);
  const uint64_t whole = of(words);
  for (const size_t place : {size_t{0}, size_t{1}, size_t{255}, size_t{256}, size_t{299}}) {
    for (const int bit : {0, 15, 31}) {
      std::vector<int32_t> changed = words;
      changed[place] ^= static_cast<int32_t>(1U << bit);
      EXPECT_NE(of(changed), whole) << place << " " << bit;
    }
  }
  std::vector<int32_t> exchanged = words;
  std::swap(exchanged[3], exchanged[200]);
  EXPECT_NE(of(exchanged), whole);
}

INSTANTIATE_TEST_SUITE_P(Backends, ChecksumTest, testing::ValuesIn(backend::available_backends()),
                         [](const auto& tested) {
                           return std::string(backend::device_kind_name(tested.param));
                         });

}  // namespace
}  // namespace deltatrain::ops
