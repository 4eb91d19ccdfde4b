#include "formats/zip_archive.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

std::string write_zip(const std::filesystem::path& path) {
  ZipWriter writer(path);
  writer.add_member("root/a", "hello");
  writer.begin_member("root/data/0", 6);
  writer.write("abc", 3);
  writer.write("def", 3);
  writer.add_member("root/empty", "");
  writer.commit();
  return read_file(path);
}

std::string refusal_of(const std::string& bytes) {
  const TemporaryFolder folder;
  std::ofstream(folder / "x.pt", std::ios::binary) << bytes;
  try {
    const ZipArchive archive(folder / "x.pt");
    for (const auto& [name, member] : archive.members()) archive.check_crc32(name);
  } catch (const FormatError& error) {
    return std::string(error.what()).substr((folder / "x.pt").string().size() + 2);
  }
  return "accepted";
}

// The archive with every occurrence of a text replaced by another of the same length.
std::string with(std::string bytes, const std::string& from, const std::string& to) {
  for (size_t at = bytes.find(from); at != std::string::npos;
       at = bytes.find(from, at + to.size())) {
    bytes.replace(at, from.size(), to);
  }
  return bytes;
}

// The archive with bytes of its central directory record `index` overwritten.
std::string with_central(std::string bytes, int index, size_t offset, const std::string& field) {
  size_t at = bytes.find("PK\x01\x02");
  for (; index > 0; --index) at = bytes.find("PK\x01\x02", at + 1);
  return bytes.replace(at + offset, field.size(), field);
}

TEST(ZipArchiveTest, ReadsBackWhatWasWrittenAlignedTo64Bytes) {
  const TemporaryFolder folder;
  write_zip(folder / "x.pt");
  EXPECT_TRUE(looks_like_zip(folder / "x.pt"));
  const ZipArchive archive(folder / "x.pt");
  ASSERT_EQ(archive.members().size(), 3U);
  const auto& data = *archive.find("root/data/0");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size()),
            "abcdef");
  for (const auto& [name, member] : archive.members()) {
    archive.check_crc32(name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(member.bytes.data()) % 64, 0U) << name;
  }
  EXPECT_EQ(archive.find("nothing"), nullptr);
}

TEST(ZipArchiveTest, IsAZipArchiveToOtherPrograms) {
  const TemporaryFolder folder;
  write_zip(folder / "x.pt");
  const std::string command =
      "python3 -c \"import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
      "sys.exit(z.testzip() is not None or z.read('root/data/0') != b'abcdef')\" " +
      (folder / "x.pt").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(ZipArchiveTest, ReadsAnotherWritersFile) {
  const ZipArchive archive(test::golden_path("torch") / "current.pt");
  EXPECT_NE(archive.find("current/data.pkl"), nullptr);
  for (const auto& [name, member] : archive.members()) archive.check_crc32(name);
}

TEST(ZipArchiveTest, RefusesEveryTruncation) {
  const TemporaryFolder folder;
  const std::string good = write_zip(folder / "x.pt");
  EXPECT_EQ(refusal_of(good), "accepted");
  for (size_t length = 0; length < good.size(); ++length)
    ASSERT_NE(refusal_of(good.substr(0, length)), "accepted");
}

TEST(ZipArchiveTest, FindsChangedDataByItsChecksum) {
  const TemporaryFolder folder;
  const std::string good = write_zip(folder / "x.pt");
  EXPECT_THAT(refusal_of(with(good, "abcdef", "abcdeg")),
              HasSubstr("root/data/0: CRC-32: expected "));
}

TEST(ZipArchiveTest, RefusesHostileMembers) {
  const TemporaryFolder folder;
  const std::string good = write_zip(folder / "x.pt");
  EXPECT_THAT(refusal_of(with(good, "root/a", "../../")),
              HasSubstr("member \"../../\": expected a name within"));
  EXPECT_THAT(refusal_of(with(good, "root/a", "/etc/a")),
              HasSubstr("expected a name within the archive"));
  EXPECT_THAT(refusal_of(with(good, "root/a", "root\\a")),
              HasSubstr("expected a name within the archive"));
  EXPECT_THAT(refusal_of(with(good, "root/data/0", std::string("root/a\0\0\0\0\0", 11))),
              HasSubstr("expected a name within the archive"));
  EXPECT_THAT(refusal_of(with_central(good, 0, 10, std::string("\x08\0", 2))),
              HasSubstr("expected a stored member"));
  EXPECT_THAT(refusal_of(with_central(good, 0, 8, std::string("\x01\0", 2))),
              HasSubstr("expected a member that isn't encrypted"));
  EXPECT_THAT(refusal_of(with_central(good, 0, 20, "\xf0\xff\xff\x7f\xf0\xff\xff\x7f")),
              HasSubstr("expected 2147483632 bytes at 64"));
  EXPECT_THAT(refusal_of(with_central(good, 0, 42, "\xf0\xff\xff\x7f")),
              HasSubstr("expected a local header"));
  EXPECT_THAT(refusal_of(with_central(good, 0, 28, "\xff\xff")), HasSubstr("a member within it"));
}

TEST(ZipArchiveTest, RefusesNamesGivenTwiceAndAWrongCount) {
  const TemporaryFolder folder;
  ZipWriter writer(folder / "x.pt");
  writer.add_member("root/a", "1");
  writer.add_member("root/a", "2");
  writer.commit();
  EXPECT_THAT(refusal_of(read_file(folder / "x.pt")),
              HasSubstr("root/a: expected one member of this name, got two"));
  std::string many = write_zip(folder / "y.pt");
  many.replace(many.size() - 12, 2, "\xff\xff");
  EXPECT_THAT(refusal_of(many), HasSubstr("central directory: expected at most"));
}

}  // namespace
}  // namespace deltatrain::formats
