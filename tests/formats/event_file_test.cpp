#include "formats/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using namespace std::string_literals;

// The check value of CRC-32C is e3069283 for "123456789", and 8a9136aa for 32 zeros (RFC 3720,
// B.4); masked by hand: rotated right by 15, plus a282ead8.
TEST(EventFileTest, ChecksumsAreMaskedCastagnoli) {
  EXPECT_EQ(masked_crc32c("123456789"s), 0xc78ab0e5U);
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), 0x0fd7fffaU);
}

// The messages of a file's records.
std::vector<std::string> records(const std::string& bytes) {
  std::vector<std::string> messages;
  size_t at = 0;
  const auto number = [&](auto value) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
    at += sizeof value;
    return value;
  };
  while (at + 12 <= bytes.size()) {
    const std::string head = bytes.substr(at, 8);
    const auto size = number(uint64_t{});
    EXPECT_EQ(number(uint32_t{}), masked_crc32c(head));
    messages.push_back(bytes.substr(at, size));
    at += size;
    EXPECT_EQ(number(uint32_t{}), masked_crc32c(messages.back()));
  }
  EXPECT_EQ(at, bytes.size());
  return messages;
}

TEST(EventFileTest, WritesScalarsAsEvents) {
  const test::TemporaryFolder folder;
  const auto file = make_event_file(folder / "tensorboard", 1.5, 0);
  if (file == nullptr) GTEST_SKIP() << "built without protobuf";
  const std::vector<EventScalar> scalars = {{"a/b", 0.5}, {"c", -2}, {"d", 0}};
  file->add(300, 2.5, scalars);
  file->flush();
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "tensorboard"))
    found.push_back(entry.path());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].filename().string(), testing::StartsWith("events.out.tfevents.0000000001."));
  const std::vector<std::string> messages = records(read_file(found[0]));
  ASSERT_EQ(messages.size(), 2U);
  // Protobuf's wire format, byte by byte: wall_time 1 as a double, file_version 3 as a text.
  EXPECT_EQ(messages[0], "\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d"s + "brain.Event:2");
  // wall_time, step 2 as a varint, summary 5: values 1 of tag 1 and simple_value 2 as a float.
  EXPECT_EQ(messages[1],
            "\x09\0\0\0\0\0\0\x04\x40\x10\xac\x02\x2a\x20"
            "\x0a\x0a\x0a\x03"s +
                "a/b" + "\x15\0\0\0\x3f"s + "\x0a\x08\x0a\x01"s + "c" + "\x15\0\0\0\xc0"s +
                "\x0a\x08\x0a\x01"s + "d" + "\x15\0\0\0\0"s);
}

TEST(EventFileTest, AResumedRunStartsASession) {
  const test::TemporaryFolder folder;
  const auto file = make_event_file(folder.path(), 0, 7);
  if (file == nullptr) GTEST_SKIP() << "built without protobuf";
  const auto second = make_event_file(folder.path(), 0, 0);  // of the same second: another name
  std::vector<size_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::vector<std::string> messages = records(read_file(entry.path()));
    sizes.push_back(messages.size());
    if (messages.size() == 2) {
      EXPECT_EQ(messages[1], "\x10\x07\x3a\x02\x08\x01"s);  // step 7; session_log 7: status START
    }
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(1, 2));
}

TEST(EventFileTest, AFolderThatCannotBeWrittenIsNamed) {
  try {
    if (make_event_file("/proc/none", 0, 0) == nullptr) GTEST_SKIP() << "built without protobuf";
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_THAT(error.what(), testing::HasSubstr("/proc/none/events.out.tfevents"));
  }
}

}  // namespace
}  // namespace deltatrain::formats
