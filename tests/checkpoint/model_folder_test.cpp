#include "checkpoint/model_folder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "checkpoint/small_checkpoint.h"
#include "support/test_files.h"

namespace deltatrain::checkpoint {
namespace {

using test::SmallCheckpoint;
using test::TemporaryFolder;
using ::testing::HasSubstr;

const std::vector<TiedName> kTies = {{"lm_head.weight", "model.embeddings.weight"}};

// Writes tensors of four f32 values, each VALUE, VALUE + 1, ...
void write_folder(const std::filesystem::path& folder,
                  const std::vector<std::pair<std::string, float>>& tensors) {
  std::vector<formats::TensorSpec> specs;
  for (const auto& [name, value] : tensors) specs.push_back({name, DType::kF32, {2, 2}});
  formats::SafetensorsFolderWriter writer(folder, "model", specs);
  for (const auto& [name, value] : tensors) {
    float values[4] = {value, value + 1, value + 2, value + 3};
    writer.write(name, Tensor(values, DType::kF32, {2, 2}));
  }
  writer.commit();
}

// Reads an embedding and a norm; the error's text, or "".
std::string read(const std::filesystem::path& folder, float* embedding, float* norm) {
  const std::vector<NamedTensor> parameters = {
      {"model.embeddings.weight", Tensor(embedding, DType::kF32, {2, 2})},
      {"model.norm.weight", Tensor(norm, DType::kF32, {2, 2})}};
  try {
    ModelFolder(folder).read_all(parameters, kTies);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelFolderTest, TakesATiedHeadUnderEitherNameOrBoth) {
  for (const auto& names : {std::vector<std::string>{"model.embeddings.weight"},
                            {"lm_head.weight"},
                            {"lm_head.weight", "model.embeddings.weight"}}) {
    const TemporaryFolder folder;
    std::vector<std::pair<std::string, float>> tensors = {{"model.norm.weight", 5.0F}};
    for (const std::string& name : names) tensors.emplace_back(name, 2.0F);
    write_folder(folder.path(), tensors);
    float embedding[4] = {};
    float norm[4] = {};
    EXPECT_EQ(read(folder.path(), embedding, norm), "");
    EXPECT_EQ(embedding[3], 5.0F);
    EXPECT_EQ(norm[0], 5.0F);
  }
}

TEST(ModelFolderTest, RefusesATiedHeadOfOtherValues) {
  const TemporaryFolder folder;
  write_folder(
      folder.path(),
      {{"model.norm.weight", 5.0F}, {"model.embeddings.weight", 2.0F}, {"lm_head.weight", 2.5F}});
  float embedding[4] = {};
  float norm[4] = {};
  EXPECT_EQ(read(folder.path(), embedding, norm),
            (folder / "model.safetensors").string() +
                ": lm_head.weight: expected the values of model.embeddings.weight, to which it is "
                "tied, got others");
}

TEST(ModelFolderTest, ListsWhatDiffers) {
  const TemporaryFolder folder;
  write_folder(folder.path(), {{"model.norm.weight", 5.0F}, {"model.embed.weight", 2.0F}});
  float embedding[4] = {};
  float norm[4] = {};
  EXPECT_EQ(read(folder.path(), embedding, norm),
            folder.path().string() +
                ": expected the tensors of the model, got 1 missing (model.embeddings.weight), 1 "
                "extra (model.embed.weight)");
  EXPECT_EQ(norm[0], 0.0F);
}

TEST(ModelFolderTest, ReadsACheckpointAndConvertsItsDtypes) {
  const TemporaryFolder run;
  SmallCheckpoint(2).save(run / "checkpoints");
  const ModelFolder opened(run.path());
  EXPECT_TRUE(opened.is_native());
  EXPECT_EQ(opened.step(), 2);
  EXPECT_EQ(opened.folder(), run / "checkpoints/iter_0000002");
  BFloat16 embedding[16 * 8];
  double norm[8];
  opened.read_all(std::vector<NamedTensor>{
      {"model.embeddings.weight", Tensor(embedding, DType::kBF16, {16, 8})},
      {"model.norm.weight", Tensor(norm, DType::kF64, {8})}});
  const SmallCheckpoint expected(2);
  EXPECT_EQ(embedding[9].bits, BFloat16(expected.model()[0].tensor.data<float>()[9]).bits);
  EXPECT_EQ(norm[3], static_cast<double>(
                         static_cast<float>(expected.model()[1].tensor.data<BFloat16>()[3])));
}

// Tensors of several blocks of a file, and data that begin where other writers may put them.
TEST(ModelFolderTest, ReadsLargeTensorsWhereverTheirDataBegin) {
  const int64_t count = 700001;
  std::vector<float> wide(static_cast<size_t>(count));
  std::vector<BFloat16> narrow(static_cast<size_t>(2 * count));
  for (int64_t i = 0; i < count; ++i) {
    wide[static_cast<size_t>(i)] = static_cast<float>(i) + 0.5F;
    narrow[static_cast<size_t>(2 * i)] = BFloat16(static_cast<float>(i % 251));
    narrow[static_cast<size_t>(2 * i + 1)] = BFloat16(-1.0F);
  }
  for (size_t padding = 0; padding < 5; ++padding) {
    const TemporaryFolder folder;
    std::string header =
        R"({"model.embeddings.weight":{"dtype":"F32","shape":[700001],"data_offsets":[0,2800004]},)"
        R"("model.norm.weight":{"dtype":"BF16","shape":[1400002],"data_offsets":[2800004,5600008]}})";
    header.append((8 - header.size() % 8) % 8 + padding, ' ');
    const uint64_t length = header.size();
    std::ofstream(folder / "model.safetensors", std::ios::binary)
        .write(reinterpret_cast<const char*>(&length), 8)
        .write(header.data(), static_cast<std::streamsize>(header.size()))
        .write(reinterpret_cast<const char*>(wide.data()), 4 * count)
        .write(reinterpret_cast<const char*>(narrow.data()), 4 * count);
    std::vector<float> embedding(static_cast<size_t>(count)), norm(static_cast<size_t>(2 * count));
    ModelFolder(folder.path())
        .read_all(std::vector<NamedTensor>{
            {"model.norm.weight", Tensor(norm.data(), DType::kF32, {2 * count})},
            {"model.embeddings.weight", Tensor(embedding.data(), DType::kF32, {count})}});
    EXPECT_EQ(embedding, wide) << padding;
    EXPECT_TRUE(std::equal(norm.begin(), norm.end(), narrow.begin(), [](float got, BFloat16 want) {
      return got == static_cast<float>(want);
    })) << padding;
  }
}

TEST(ModelFolderTest, SaysWhatItLookedFor) {
  const TemporaryFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    try {
      const ModelFolder opened(path);
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message(folder.path()),
              HasSubstr("expected a model: model.safetensors or its index, or a checkpoint"));
  EXPECT_THAT(message(folder / "nowhere"),
              HasSubstr("expected a folder with a model, got no such folder"));
}

}  // namespace
}  // namespace deltatrain::checkpoint
