#include <algorithm>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/size_text.h"
#include "support/test_files.h"

namespace deltatrain {
namespace {

TEST(SizeTextTest, CountsInPowersOf1024) {
  EXPECT_EQ(size_text(0), "0.00 MiB");
  EXPECT_EQ(size_text(3 * 1024 * 1024 + 512 * 1024), "3.50 MiB");
  EXPECT_EQ(size_text((int64_t{1} << 30) - 1), "1024.00 MiB");
  EXPECT_EQ(size_text(int64_t{5} << 28), "1.25 GiB");
}

TEST(ErrorTest, TextNamesWhereWhatExpectedAndGot) {
  EXPECT_EQ(error_text("a.yaml:14", "optimizer.lr", "a number > 0", "\"-3e-4\""),
            "a.yaml:14: optimizer.lr: expected a number > 0, got \"-3e-4\"");
  EXPECT_EQ(error_text("file", "", "", "nothing"), "file: got nothing");
}

TEST(ErrorTest, NearestNameFindsTyposAndIgnoresStrangers) {
  const std::vector<std::string> names = {"num_heads", "hidden_size", "head_dim"};
  EXPECT_EQ(nearest_name("num_head", names), "num_heads");
  EXPECT_EQ(nearest_name("hiden_szie", names), "hidden_size");
  EXPECT_EQ(nearest_name("zebra", names), "");
}

TEST(CheckTest, NarrowRefusesWhatDoesNotFit) {
  EXPECT_EQ(narrow<int32_t>(int64_t{-5}), -5);
  EXPECT_THROW(narrow<int32_t>(int64_t{1} << 40), InternalError);
  EXPECT_THROW(narrow<uint8_t>(-1), InternalError);
  EXPECT_THROW(divide_exactly(7, 2), InternalError);
}

TEST(BFloat16Test, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(static_cast<float>(BFloat16(1.0F)), 1.0F);
  EXPECT_EQ(BFloat16(1.00390625F).bits, 0x3f80);   // 1 + 2^-8: a tie, to even
  EXPECT_EQ(BFloat16(1.01171875F).bits, 0x3f82);   // 1 + 3 * 2^-8: a tie, to even
  EXPECT_EQ(BFloat16(3.4e38F).bits, 0x7f80);       // rounds to infinity
  EXPECT_NE(static_cast<float>(BFloat16(std::nanf(""))), static_cast<float>(BFloat16(std::nanf(""))));
}

// Known answers of the reference implementation (Random123, kat_vectors, philox4x32 10).
TEST(RandomTest, PhiloxMatchesPublishedVectors) {
  const std::array<uint32_t, 4> zero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), zero);
  const uint32_t f = 0xffffffff;
  const std::array<uint32_t, 4> ones = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}), ones);
  const std::array<uint32_t, 4> pi = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}), pi);
}

TEST(RandomTest, NormalHasTheRightMoments) {
  const RandomStream stream(7, "moments");
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = stream.normal(static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
}

TEST(RandomTest, StreamsDifferByNameSeedAndStep) {
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(1, "b").bits(0));
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(2, "a").bits(0));
  EXPECT_NE(RandomStream(1, "a", 0).bits(0), RandomStream(1, "a", 1).bits(0));
}

TEST(HashTest, Sha256OfAbc) {
  Sha256 digest;
  digest.update("a", 1);
  digest.update("bc", 2);
  EXPECT_EQ(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex64(xxh3_64("", 0)), "2d06800538d394c2");
  const std::string text(1000, 'x');
  Xxh3 pieces;
  for (size_t at = 0; at < text.size(); at += 300) pieces.update(text.data() + at, std::min<size_t>(300, text.size() - at));
  EXPECT_EQ(pieces.value(), xxh3_64(text.data(), text.size()));
}

TEST(FilesTest, AtomicWriterLeavesNothingWithoutCommit) {
  const test::TemporaryFolder folder;
  {
    AtomicFileWriter writer(folder / "a");
    writer.write("half");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  write_file_atomically(folder / "a", "whole");
  EXPECT_EQ(read_file(folder / "a"), "whole");
}

TEST(FilesTest, ALinkReplacesAnotherFileAndItselfToo) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "a", "whole");
  write_file_atomically(folder / "b", "other");
  for (int times = 0; times < 2; ++times) {
    EXPECT_TRUE(link_file_atomically(folder / "a", folder / "b"));
    EXPECT_EQ(read_file(folder / "b"), "whole");
    EXPECT_TRUE(std::filesystem::equivalent(folder / "a", folder / "b"));
  }
  EXPECT_FALSE(link_file_atomically(folder / "none", folder / "b"));
  EXPECT_FALSE(link_file_atomically(folder / "a", folder / "no folder" / "b"));
  EXPECT_EQ(read_file(folder / "b"), "whole");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);  // no temporary names
}

TEST(FilesTest, ErrorsNameTheFile) {
  try {
    read_file("/nonexistent/file");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "/nonexistent/file: cannot be opened: No such file or directory");
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
  }
}

}  // namespace
}  // namespace deltatrain
