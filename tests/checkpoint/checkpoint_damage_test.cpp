// A checkpoint with anything wrong in it is refused, and the message names the file.

#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/small_checkpoint.h"
#include "support/test_files.h"

namespace deltatrain::checkpoint {
namespace {

using test::SmallCheckpoint;
using test::TemporaryFolder;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string refusal_of(const std::filesystem::path& path) {
  try {
    CheckpointReader(path).verify_checksums();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

void overwrite(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

class CheckpointDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SmallCheckpoint(3).save(folder_.path());
    iteration_ = folder_ / "iter_0000003";
    for (const auto& entry : std::filesystem::directory_iterator(iteration_))
      files_.push_back(entry.path());
    ASSERT_EQ(files_.size(), 4U);
  }

  TemporaryFolder folder_;
  std::filesystem::path iteration_;
  std::vector<std::filesystem::path> files_;
};

TEST_F(CheckpointDamageTest, EveryChangedByteIsFound) {
  for (const auto& file : files_) {
    const std::string good = read_file(file);
    std::string bad = good;
    for (size_t i = 0; i < good.size(); ++i) {
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      overwrite(file, bad);
      ASSERT_THAT(refusal_of(iteration_), HasSubstr(file.string())) << "byte " << i;
      bad[i] = good[i];
    }
    overwrite(file, good);
  }
  EXPECT_EQ(refusal_of(iteration_), "accepted");
}

TEST_F(CheckpointDamageTest, EveryLengthIsFound) {
  for (const auto& file : files_) {
    const std::string good = read_file(file);
    for (size_t length = 0; length < good.size(); length += 1 + good.size() / 97) {
      overwrite(file, good.substr(0, length));
      ASSERT_THAT(refusal_of(iteration_), HasSubstr(file.string())) << length;
    }
    overwrite(file, good.substr(0, good.size() - 1));
    EXPECT_THAT(refusal_of(iteration_), HasSubstr(file.string()));
    overwrite(file, good + "x");
    EXPECT_THAT(refusal_of(iteration_), HasSubstr(file.string()));
    std::filesystem::remove(file);
    EXPECT_THAT(refusal_of(iteration_),
                AnyOf(HasSubstr(file.string()), HasSubstr("expected a checkpoint")));
    overwrite(file, good);
  }
  EXPECT_EQ(refusal_of(iteration_), "accepted");
}

TEST_F(CheckpointDamageTest, FilesOfAnotherIterationAreFound) {
  SmallCheckpoint(4).save(folder_.path());
  for (const auto& file : files_) {
    const std::string good = read_file(file);
    const std::string other = read_file(folder_ / "iter_0000004" / file.filename().string());
    if (good == other) continue;  // config.json is the same everywhere
    overwrite(file, other);
    EXPECT_THAT(refusal_of(iteration_), HasSubstr("checksum: expected")) << file;
    overwrite(file, good);
  }
}

// state.json with one text replaced and its checksum made right again.
std::string refusal_with(const std::filesystem::path& iteration, const std::string& from,
                         const std::string& to) {
  const auto path = iteration / "state.json";
  const std::string good = read_file(path);
  std::string text = good;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::string mark = ",\n \"checksum\": \"";
  const size_t body = text.rfind(mark);
  text.replace(body + mark.size(), 16, hex64(xxh3_64(text.data(), body)));
  overwrite(path, text);
  const std::string message = refusal_of(iteration);
  overwrite(path, good);
  EXPECT_EQ(message.rfind(path.string() + ": ", 0), 0U) << message;
  return message.substr(std::min(message.size(), path.string().size() + 2));
}

TEST_F(CheckpointDamageTest, RefusesWhatItsFieldsCannotMean) {
  EXPECT_EQ(refusal_with(iteration_, "\"version\": 1", "\"version\": 2"),
            "version: expected 1, got 2");
  EXPECT_EQ(refusal_with(iteration_, "\"step\": 3", "\"step\": -3"),
            "step: expected a whole number of 0 or more, got -3");
  EXPECT_EQ(refusal_with(iteration_, "\"step\": 3", "\"step\": 1e3"),
            "step: expected a whole number of 0 or more, got 1000.0");
  EXPECT_EQ(refusal_with(iteration_, "\"step\": 3", "\"stop\": 3"),
            "step: expected this key, got none");
  EXPECT_EQ(refusal_with(iteration_, "\"name\": \"config.json\"", "\"name\": \"../config.json\""),
            "companions[0].name: expected a file name without folders, got \"../config.json\"");
  EXPECT_EQ(refusal_with(iteration_, "\"dtype\": \"f32\"", "\"dtype\": \"f8\""),
            "model.tensors[0].dtype: expected the name of a dtype, got \"f8\"");
  EXPECT_EQ(
      refusal_with(iteration_, "\"name\": \"model.norm.weight\"", "\"name\": \"model.a\""),
      "model.tensors[1].name: expected a name after \"model.embeddings.weight\", got \"model.a\"");
}

}  // namespace
}  // namespace deltatrain::checkpoint
