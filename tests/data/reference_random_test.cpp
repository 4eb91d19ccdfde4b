// Expected values: numpy 1.24 (RandomState, default_rng, SeedSequence) and torch (randperm)
// themselves. Long orders are compared by the SHA-256 of their little-endian bytes, of which some
// are known by 16 digits.
#include "data/reference_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"

namespace deltatrain::data {
namespace {

using testing::ElementsAre;

template <class T>
std::string digest(const std::vector<T>& values) {
  Sha256 sha;
  sha.update(values.data(), values.size() * sizeof(T));
  return sha.hex();
}

template <class T>
std::vector<T> head(const std::vector<T>& values, size_t count = 8) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::vector<uint32_t> shuffled(NumpyRandomState& random, size_t count) {
  std::vector<uint32_t> values(count);
  std::iota(values.begin(), values.end(), 0U);
  random.shuffle(std::span(values));
  return values;
}

TEST(NumpyRandomStateTest, DrawsTheWordsOfNumpy) {
  NumpyRandomState random(1234);
  for (const uint32_t word : {822569775U, 2137449171U, 2671936806U, 3512589365U, 1880026316U}) {
    EXPECT_EQ(random.next32(), word);
  }
}

TEST(NumpyRandomStateTest, ShufflesAsNumpyOneAfterTheOther) {
  NumpyRandomState random(1234);
  EXPECT_THAT(shuffled(random, 10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(shuffled(random, 10), ElementsAre(7, 3, 5, 1, 4, 8, 0, 2, 6, 9));
  NumpyRandomState other(42);
  EXPECT_THAT(shuffled(other, 10), ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
}

TEST(NumpyRandomStateTest, ShufflesAThousand) {
  NumpyRandomState random(1234);
  const std::vector<uint32_t> order = shuffled(random, 1000);
  EXPECT_THAT(head(order), ElementsAre(681, 990, 155, 768, 438, 363, 688, 555));
  EXPECT_EQ(digest(order).substr(0, 16), "4654e92b166be9fc");
  NumpyRandomState other(42);
  const std::vector<uint32_t> order_42 = shuffled(other, 1000);
  EXPECT_THAT(head(order_42), ElementsAre(521, 737, 740, 660, 411, 678, 626, 513));
  EXPECT_EQ(digest(order_42).substr(0, 16), "d32ced5c0422023c");
}

TEST(NumpyGeneratorTest, SpreadsTheSeedAsSeedSequence) {
  EXPECT_THAT(numpy_seed_sequence(42, 8),
              ElementsAre(3444837047U, 2669555309U, 2046530742U, 3581440988U, 1691623607U,
                          2099784219U, 1184028159U, 862288241U));
}

TEST(NumpyGeneratorTest, DrawsTheWordsOfNumpy) {
  NumpyGenerator generator(42);
  for (const uint64_t word : {14276969152011380360ULL, 8095878257575067585ULL,
                              15838336090824644132ULL, 12864169557245331597ULL}) {
    EXPECT_EQ(generator.next64(), word);
  }
}

TEST(NumpyGeneratorTest, PermutesAsNumpy) {
  EXPECT_THAT(NumpyGenerator(42).permutation(10), ElementsAre(5, 6, 0, 7, 3, 2, 4, 9, 1, 8));
  EXPECT_THAT(NumpyGenerator(0).permutation(10), ElementsAre(4, 6, 2, 7, 3, 5, 9, 0, 8, 1));
  const std::vector<int64_t> thousand = NumpyGenerator(42).permutation(1000);
  EXPECT_THAT(head(thousand), ElementsAre(978, 933, 859, 916, 127, 608, 856, 260));
  EXPECT_EQ(digest(thousand).substr(0, 16), "9f551c62131b8c8b");
  const std::vector<int64_t> many = NumpyGenerator(42).permutation(100000);
  EXPECT_THAT(head(many), ElementsAre(45262, 49850, 30394, 90177, 95569, 10900, 193, 98908));
  EXPECT_EQ(digest(many).substr(0, 16), "337067d090e589be");
}

TEST(NumpyGeneratorTest, DrawsBoundedIntegersAsNumpy) {
  NumpyGenerator generator(0);
  int64_t sum = 0;
  std::vector<int32_t> lengths(100000);
  for (int32_t& length : lengths) sum += length = generator.integer(1, 4096);
  EXPECT_THAT(head(lengths), ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68));
  EXPECT_EQ(sum, 204637097);
}

TEST(TorchRandpermTest, PermutesAsTorch) {
  EXPECT_THAT(torch_randperm(10, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(torch_randperm(10, 1234), ElementsAre(5, 4, 8, 2, 6, 9, 1, 7, 0, 3));
  EXPECT_EQ(digest(torch_randperm(1000, 0)).substr(0, 16), "cee4a88ef6120e8e");
  EXPECT_EQ(digest(torch_randperm(1000, 1234)).substr(0, 16), "ae8ae77dccd2f5e0");
}

// torch 2.11, manual_seed(42).
TEST(TorchRandpermTest, PermutesAsTorchWithSeed42) {
  EXPECT_EQ(digest(torch_randperm(1, 42)),
            "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
  EXPECT_EQ(digest(torch_randperm(10, 42)),
            "fd6484606b698821d3cb41481c8658938c5df28b4df65a624686fb697f37c1ad");
  EXPECT_EQ(digest(torch_randperm(1000, 42)),
            "ac5c22de20fc5d169c3080fbf2719977f1c5e187f76217d18f95047e3cf159d6");
  EXPECT_EQ(digest(torch_randperm(100000, 42)),
            "0db47ee798461909e3e4eb0e9f8d3617d637ba050433ae3f090dadb7e149ce3f");
}

TEST(TorchRandpermTest, RefusesSizesForWhichTorchChangesItsMethod) {
  EXPECT_THROW(torch_randperm(214748364, 0), UnsupportedError);
}

}  // namespace
}  // namespace deltatrain::data
