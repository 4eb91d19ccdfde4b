#include "formats/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
void put(std::string& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// An index by hand, from the format's description.
std::string index_bytes(uint8_t code, const std::vector<int32_t>& lengths, int64_t item,
                        const std::vector<int64_t>& documents) {
  std::string bytes("MMIDIDX\0\0", 9);
  append<uint64_t>(bytes, 1);
  append<uint8_t>(bytes, code);
  append<uint64_t>(bytes, lengths.size());
  append<uint64_t>(bytes, documents.size());
  for (const int32_t length : lengths) append(bytes, length);
  int64_t pointer = 0;
  for (const int32_t length : lengths) {
    append(bytes, pointer);
    pointer += length * item;
  }
  for (const int64_t document : documents) append(bytes, document);
  return bytes;
}

class IndexedDatasetTest : public testing::Test {
 protected:
  std::string prefix() const { return (folder_ / "set").string(); }

  void write_files(const std::string& bin, const std::string& idx) {
    write_file_atomically(bin_path(prefix()), bin);
    write_file_atomically(idx_path(prefix()), idx);
  }

  std::string refusal() const {
    try {
      const IndexedDataset dataset(prefix());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  }

  static std::vector<int32_t> all_tokens(const IndexedDataset& dataset) {
    std::vector<int32_t> tokens(static_cast<size_t>(dataset.num_tokens()));
    dataset.read(0, tokens, 0);
    return tokens;
  }

  test::TemporaryFolder folder_;
};

TEST_F(IndexedDatasetTest, WritesTheFormatToTheByte) {
  IndexedDatasetWriter writer(prefix(), TokenType::kU16);
  writer.add_document(std::vector<int32_t>{1, 2, 65535});
  writer.add_sequence(std::vector<int32_t>{7});
  writer.add_sequence(std::vector<int32_t>{8, 9});
  writer.end_document();
  const IndexedDatasetWriter::Digests digests = writer.commit();

  const std::string bin = read_file(bin_path(prefix()));
  const std::string idx = read_file(idx_path(prefix()));
  EXPECT_EQ(bin, std::string("\x01\0\x02\0\xff\xff\x07\0\x08\0\x09\0", 12));
  EXPECT_EQ(idx, index_bytes(8, {3, 1, 2}, 2, {0, 1, 3}));
  Sha256 sha;
  sha.update(idx.data(), idx.size());
  EXPECT_EQ(digests.idx_sha256, sha.hex());
  EXPECT_EQ(digests.bin_bytes, 12);
  EXPECT_EQ(digests.idx_bytes, static_cast<int64_t>(idx.size()));
}

TEST_F(IndexedDatasetTest, ReadsWhatItWrote) {
  IndexedDatasetWriter writer(prefix(), TokenType::kI32);
  writer.add_document(std::vector<int32_t>{0, 65535, 65536, 128000, 128255});
  writer.add_document(std::vector<int32_t>{});
  writer.add_document(std::vector<int32_t>{5, 6});
  writer.commit();
  const IndexedDataset dataset(prefix());
  EXPECT_EQ(dataset.type(), TokenType::kI32);
  EXPECT_EQ(dataset.num_sequences(), 3);
  EXPECT_EQ(dataset.num_documents(), 3);
  EXPECT_EQ(dataset.length(1), 0);
  EXPECT_EQ(dataset.first_token(2), 5);
  EXPECT_EQ(dataset.document_begin(3), 3);
  EXPECT_EQ(dataset.sequence_of_token(4), 0);
  EXPECT_EQ(dataset.sequence_of_token(5), 2);
  EXPECT_THAT(all_tokens(dataset), ElementsAre(0, 65535, 65536, 128000, 128255, 5, 6));
}

// Both ways of adding raw tokens give the files that ids give; what is larger than the writer's buffer too.
TEST_F(IndexedDatasetTest, RawDocumentsAreThoseOfTheirIds) {
  std::vector<int32_t> ids(1'000'003);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % 128256);
  const std::vector<int32_t> lengths = {3, 0, 700'000, 0, 0, 299'990, 10};
  IndexedDatasetWriter by_ids(prefix(), TokenType::kI32);
  size_t begin = 0;
  for (const int32_t length : lengths) {
    if (length > 0) by_ids.add_sequence(std::span(ids).subspan(begin, static_cast<size_t>(length)));
    by_ids.end_document();
    begin += static_cast<size_t>(length);
  }
  const auto want = by_ids.commit();

  const auto bytes = std::as_bytes(std::span<const int32_t>(ids));
  const std::string file = (folder_ / "tokens").string();
  write_file_atomically(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  for (const bool take : {false, true}) {
    const std::string name = prefix() + (take ? "_taken" : "_raw");
    IndexedDatasetWriter writer(name, TokenType::kI32);
    if (take) writer.take_tokens_of(file);
    writer.add_raw_documents(bytes.first(12), std::span(lengths).first(2));
    writer.add_raw_documents(bytes.subspan(12), std::span(lengths).subspan(2));
    EXPECT_EQ(writer.num_sequences(), 4);
    EXPECT_EQ(writer.num_documents(), 7);
    const auto got = writer.commit();
    EXPECT_EQ(got.bin_sha256, want.bin_sha256);
    EXPECT_EQ(got.idx_sha256, want.idx_sha256);
    EXPECT_EQ(got.bin_bytes, want.bin_bytes);
    EXPECT_EQ(read_file(bin_path(name)), read_file(bin_path(prefix())));
    EXPECT_EQ(read_file(idx_path(name)), read_file(idx_path(prefix())));
    EXPECT_EQ(std::filesystem::equivalent(file, bin_path(name)), take);
  }
}

// A test for the copy needs a file that no second name in the folder can be given to: one of another file system.
TEST_F(IndexedDatasetTest, TakesTokensOfAnotherFileSystemByCopying) {
  const std::filesystem::path other = "/dev/shm";
  struct stat here {
  }, there{};
  if (::stat(other.c_str(), &there) != 0 || ::stat(folder_.path().c_str(), &here) != 0 ||
      here.st_dev == there.st_dev || ::access(other.c_str(), W_OK) != 0)
    GTEST_SKIP() << "no second file system";
  const std::string file = (other / ("deltatrain-test-" + std::to_string(::getpid()))).string();
  write_file_atomically(file, std::string("\x01\0\x02\0\xff\xff", 6));
  IndexedDatasetWriter writer(prefix(), TokenType::kU16);
  writer.take_tokens_of(file);
  writer.add_raw_documents(MappedFile(file).bytes(), std::vector<int32_t>{3});
  writer.commit();
  std::filesystem::remove(file);
  EXPECT_EQ(read_file(bin_path(prefix())), std::string("\x01\0\x02\0\xff\xff", 6));
  EXPECT_THAT(all_tokens(IndexedDataset(prefix())), ElementsAre(1, 2, 65535));
}

TEST_F(IndexedDatasetTest, LeavesNothingWithoutCommit) {
  {
    IndexedDatasetWriter writer(prefix(), TokenType::kI32);
    writer.add_document(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(IndexedDatasetTest, ChoosesTheTypeByTheVocabulary) {
  EXPECT_EQ(token_type_for_vocabulary(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for_vocabulary(65500), TokenType::kI32);
  EXPECT_EQ(token_type_for_vocabulary(128256), TokenType::kI32);
}

TEST_F(IndexedDatasetTest, RefusesToWriteAnIdThatDoesNotFit) {
  IndexedDatasetWriter writer(prefix(), TokenType::kU16);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{65536}), FormatError);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), FormatError);
}

TEST_F(IndexedDatasetTest, ReadsDocumentIndicesWithoutTheLeadingZero) {
  write_files(std::string("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0", 16),
              index_bytes(4, {2, 2}, 4, {1, 2}));
  const IndexedDataset dataset(prefix());
  EXPECT_EQ(dataset.num_documents(), 2);
  EXPECT_EQ(dataset.document_begin(0), 0);
  EXPECT_EQ(dataset.document_begin(1), 1);
  EXPECT_EQ(dataset.document_begin(2), 2);
}

TEST_F(IndexedDatasetTest, ReadsEveryIntegerType) {
  const std::vector<std::pair<TokenType, size_t>> types{{TokenType::kU8, 1},  {TokenType::kI8, 1},
                                                        {TokenType::kI16, 2}, {TokenType::kI32, 4},
                                                        {TokenType::kI64, 8}, {TokenType::kU16, 2}};
  for (const auto& [type, item] : types) {
    std::string bin(3 * item, '\0');
    for (size_t i = 0; i < 3; ++i) bin[i * item] = static_cast<char>(5 + i);
    write_files(bin,
                index_bytes(static_cast<uint8_t>(type), {3}, static_cast<int64_t>(item), {0, 1}));
    const IndexedDataset dataset(prefix());
    EXPECT_THAT(all_tokens(dataset), ElementsAre(5, 6, 7)) << token_type_name(type);
  }
}

TEST_F(IndexedDatasetTest, NamesNegativeAndLargeIds) {
  write_files(std::string("\1\0\0\0\xff\xff\xff\xff\3\0\0\0\4\0\0\0", 16),
              index_bytes(4, {1, 3}, 4, {0, 1, 2}));
  const IndexedDataset dataset(prefix());
  const auto message = [&](int64_t first, int64_t vocab_size) {
    std::vector<int32_t> out(2);
    try {
      dataset.read(first, out, vocab_size);
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string("read");
  };
  EXPECT_THAT(
      message(0, 0),
      HasSubstr(
          "set.bin: token 1 (sequence 1, position 0): expected an id below 2147483648, got -1"));
  EXPECT_EQ(message(2, 5), "read");
  EXPECT_THAT(message(2, 4), HasSubstr("token 3 (sequence 1, position 2): expected an id below 4, "
                                       "the vocabulary's size, got 4"));
}

TEST_F(IndexedDatasetTest, RefusesFilesThatDisagree) {
  const std::string bin(16, '\1');
  const std::string idx = index_bytes(4, {1, 3}, 4, {0, 1, 2});
  write_files(bin, idx);
  EXPECT_EQ(refusal(), "accepted");

  write_files(bin.substr(0, 12), idx);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("set.bin: size: expected at least 16 bytes"),
                               HasSubstr("got 12 bytes")));
  write_files(bin + "xxxx", idx);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("set.bin: size: expected 16 bytes"), HasSubstr("got 20 bytes")));
  write_files("", idx);
  EXPECT_THAT(refusal(), HasSubstr("got 0 bytes"));
  write_files(bin, idx.substr(0, idx.size() - 8));
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("set.idx: size: expected 82 bytes"), HasSubstr("got 74 bytes")));
  write_files(bin, idx + "x");
  EXPECT_THAT(refusal(), HasSubstr("got 83 bytes"));
  write_files(bin, idx + "xx");
  EXPECT_THAT(refusal(), HasSubstr("multimodal"));
  write_files(bin, idx.substr(0, 20));
  EXPECT_THAT(refusal(), HasSubstr("expected a header of 34 bytes, got 20 bytes"));
  write_files(bin, "");
  EXPECT_THAT(refusal(), HasSubstr("got 0 bytes"));
}

TEST_F(IndexedDatasetTest, RefusesAnIndexThatLies) {
  const std::string bin(16, '\1');
  const std::string idx = index_bytes(4, {1, 3}, 4, {0, 1, 2});
  const auto refusal_with = [&](size_t offset, auto value) {
    std::string changed = idx;
    put(changed, offset, value);
    write_files(bin, changed);
    return refusal();
  };
  EXPECT_THAT(refusal_with(0, 'X'), HasSubstr("magic: expected MMIDIDX"));
  EXPECT_THAT(refusal_with(9, uint64_t{2}), HasSubstr("version: expected 1, got 2"));
  EXPECT_THAT(refusal_with(17, uint8_t{6}),
              HasSubstr("dtype code: expected 1, 2, 3, 4, 5 or 8 (an integer type), got 6"));
  EXPECT_THAT(refusal_with(17, uint8_t{200}), HasSubstr("got 200"));
  EXPECT_THAT(refusal_with(18, ~uint64_t{0}), HasSubstr("counts"));
  EXPECT_THAT(refusal_with(18, uint64_t{1} << 61), HasSubstr("counts"));
  EXPECT_THAT(refusal_with(26, ~uint64_t{0}), HasSubstr("counts"));
  EXPECT_THAT(refusal_with(18, uint64_t{1}), HasSubstr("size"));
  EXPECT_THAT(refusal_with(34, int32_t{-1}),
              HasSubstr("length of sequence 0: expected >= 0, got -1"));
  EXPECT_THAT(refusal_with(34, int32_t{1 << 30}),
              HasSubstr("set.bin: size: expected at least 4294967296 bytes"));
  EXPECT_THAT(refusal_with(42, int64_t{4}), HasSubstr("pointer of sequence 0: expected 0"));
  EXPECT_THAT(
      refusal_with(50, int64_t{1} << 40),
      HasSubstr(
          "pointer of sequence 1: expected 4 (the end of the one before), got 1099511627776"));
  EXPECT_THAT(refusal_with(50, int64_t{-4}), HasSubstr("got -4"));
  EXPECT_THAT(refusal_with(66, int64_t{3}),
              HasSubstr("document index 1: expected between 0 and 2, got 3"));
  EXPECT_THAT(refusal_with(74, int64_t{1}),
              HasSubstr("last document index: expected 2 (the number of sequences), got 1"));
}

TEST_F(IndexedDatasetTest, MissingFilesAreNamed) {
  EXPECT_THAT(refusal(), HasSubstr("set.bin"));
  write_file_atomically(bin_path(prefix()), "");
  EXPECT_THAT(refusal(), HasSubstr("set.idx"));
}

// Past 2^31 bytes: a sparse file makes both ends real without taking the space.
TEST_F(IndexedDatasetTest, ReadsBothEndsOfAFileOfSixGibibytes) {
  constexpr int64_t kLength = int64_t{1} << 29;
  const std::vector<int32_t> lengths(3, static_cast<int32_t>(kLength));
  write_files("", index_bytes(4, lengths, 4, {0, 1, 2, 3}));
  const std::filesystem::path bin = bin_path(prefix());
  std::filesystem::resize_file(bin, static_cast<uintmax_t>(12 * kLength));
  {
    std::FILE* file = std::fopen(bin.c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    const int32_t first = 11;
    const int32_t last = 99;
    ASSERT_EQ(std::fwrite(&first, 4, 1, file), 1U);
    ASSERT_EQ(::fseeko(file, 12 * kLength - 4, SEEK_SET), 0);
    ASSERT_EQ(std::fwrite(&last, 4, 1, file), 1U);
    ASSERT_EQ(std::fclose(file), 0);
  }
  const IndexedDataset dataset(prefix());
  EXPECT_EQ(dataset.num_tokens(), 3 * kLength);
  EXPECT_EQ(dataset.first_token(2), 2 * kLength);
  std::vector<int32_t> tokens(2);
  dataset.read(0, tokens, 100);
  EXPECT_THAT(tokens, ElementsAre(11, 0));
  dataset.read(3 * kLength - 2, tokens, 100);
  EXPECT_THAT(tokens, ElementsAre(0, 99));
}

}  // namespace
}  // namespace deltatrain::formats
