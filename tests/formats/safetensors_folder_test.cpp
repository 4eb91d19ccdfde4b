#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "formats/safetensors.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

constexpr int kNumTensors = 5;

std::vector<TensorSpec> specs() {
  std::vector<TensorSpec> result;
  for (int i = 0; i < kNumTensors; ++i)
    result.push_back({"t" + std::to_string(i), DType::kF32, {4}});
  return result;
}

void write_folder(const std::filesystem::path& folder, int64_t max_shard_bytes) {
  SafetensorsFolderWriter writer(folder, "model", specs(), max_shard_bytes);
  for (int i = 0; i < kNumTensors; ++i) {
    const float f = static_cast<float>(i);
    float values[4] = {f, f + 0.25F, f + 0.5F, f + 0.75F};
    writer.write("t" + std::to_string(i), Tensor(values, DType::kF32, {4}));
  }
  writer.commit();
}

std::string refusal_of(const std::filesystem::path& folder) {
  try {
    const SafetensorsFolder opened(folder);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SafetensorsFolderTest, SplitsAtTheLimitAndReadsBack) {
  const TemporaryFolder folder;
  write_folder(folder.path(), 32);  // two tensors a file
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00001-of-00003.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00003-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_THAT(read_file(folder / "model.safetensors.index.json"), HasSubstr("\"total_size\": 80"));
  const SafetensorsFolder opened(folder.path());
  ASSERT_EQ(opened.tensors().size(), 5U);
  EXPECT_EQ(opened.files().size(), 3U);
  float values[4];
  read_tensor(*opened.at("t3").tensor, Tensor(values, DType::kF32, {4}), "", "");
  EXPECT_EQ(values[2], 3.5F);
  EXPECT_EQ(opened.at("t3").file->path().filename(), "model-00002-of-00003.safetensors");
}

TEST(SafetensorsFolderTest, OneFileBelowTheLimitAndOneTensorAboveIt) {
  const TemporaryFolder folder;
  write_folder(folder.path(), 80);
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_EQ(SafetensorsFolder(folder.path()).tensors().size(), 5U);
  EXPECT_EQ(SafetensorsFolder(folder / "model.safetensors").tensors().size(), 5U);
  const TemporaryFolder small;
  write_folder(small.path(), 1);
  EXPECT_EQ(SafetensorsFolder(small.path()).files().size(), 5U);
}

TEST(SafetensorsFolderTest, RefusesAFolderWithoutWeights) {
  const TemporaryFolder folder;
  EXPECT_FALSE(has_safetensors(folder.path()));
  EXPECT_EQ(refusal_of(folder.path()),
            folder.path().string() +
                ": expected model.safetensors or model.safetensors.index.json, got neither");
}

TEST(SafetensorsFolderTest, RefusesAnIndexThatDisagreesWithItsFiles) {
  const TemporaryFolder folder;
  write_folder(folder.path(), 32);
  const auto index = folder / "model.safetensors.index.json";
  const auto set_index = [&index](const std::string& weight_map) {
    std::ofstream(index) << "{\"metadata\":{\"total_size\":80},\"weight_map\":{" << weight_map
                         << "}}";
  };
  const std::string one = "model-00001-of-00003.safetensors";
  const std::string first = "\"t0\":\"" + one + "\",";
  set_index(first + "\"t1\":\"" + one + "\",\"t2\":\"" + one + "\"");
  EXPECT_EQ(refusal_of(folder.path()),
            (folder / one).string() + ": t2: expected this tensor, as the index says, got none");
  set_index("\"t0\":\"" + one + "\"");
  EXPECT_EQ(refusal_of(folder.path()),
            (folder / one).string() +
                ": t1: expected a tensor that the index lists here, got one that it doesn't list");
  set_index(first + first.substr(0, first.size() - 1));
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("t0: expected one entry of this name, got two"));
  set_index("\"t0\":\"../" + one + "\"");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("expected a file name without folders"));
  set_index("\"t0\":3");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("t0: expected a file name, got number"));
  set_index("");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("weight_map: expected an entry, got none"));
  std::ofstream(index) << "not json";
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("expected JSON"));
  std::ofstream(index) << std::string(100000, '[');
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("expected JSON"));
}

TEST(SafetensorsFolderTest, RefusesAMissingPartAndAnIndexBesideASingleFile) {
  const TemporaryFolder folder;
  write_folder(folder.path(), 32);
  std::filesystem::remove(folder / "model-00002-of-00003.safetensors");
  EXPECT_THROW(SafetensorsFolder(folder.path()), FileError);
  const TemporaryFolder both;
  write_folder(both.path(), 32);
  write_folder(both.path(), 80);
  EXPECT_THAT(refusal_of(both.path()), HasSubstr("got both"));
}

}  // namespace
}  // namespace deltatrain::formats
