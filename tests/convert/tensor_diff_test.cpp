#include "convert/tensor_diff.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/safetensors.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Entry {
  std::string name;
  std::vector<float> values;
};

std::filesystem::path write(const std::filesystem::path& path, const std::vector<Entry>& entries) {
  std::vector<formats::TensorSpec> specs;
  for (const Entry& entry : entries) {
    specs.push_back({entry.name, DType::kF32, {static_cast<int64_t>(entry.values.size())}});
  }
  formats::SafetensorsWriter writer(path, specs);
  for (const Entry& entry : entries) {
    writer.write(entry.name, 0, entry.values.data(), static_cast<int64_t>(4 * entry.values.size()));
  }
  writer.commit();
  return path;
}

TEST(TensorDiffTest, MeasuresTheRelativeErrorOfEachTensor) {
  const TemporaryFolder folder;
  const auto a = write(folder / "a.safetensors", {{"u", {3, 4.5F}}, {"v", {1, 1}}});
  const auto b = write(folder / "b.safetensors", {{"u", {3, 4}}, {"v", {1, 1}}});
  const DiffReport report = diff_tensors(a, b, 0.09, silent_reporter());
  ASSERT_EQ(report.tensors.size(), 2U);
  EXPECT_DOUBLE_EQ(report.tensors[0].relative_error, 0.5 / 5);
  EXPECT_DOUBLE_EQ(report.tensors[0].max_abs, 0.5);
  EXPECT_EQ(report.tensors[0].num_different, 1);
  EXPECT_EQ(report.tensors[1].relative_error, 0);
  EXPECT_EQ(report.largest, "u");
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(diff_tensors(a, b, 0.1, silent_reporter()).passed());
  EXPECT_TRUE(diff_tensors(a, a, 0, silent_reporter()).passed());
}

TEST(TensorDiffTest, NamesTheFirstLayerThatDiffers) {
  const TemporaryFolder folder;
  std::vector<Entry> entries = {{"grad.model.layers.10.attn.A_log", {1}},
                                {"grad.model.layers.2.attn.A_log", {1}},
                                {"hidden.3", {1}},
                                {"logits", {1}},
                                {"model.embeddings.weight", {1}}};
  const auto b = write(folder / "b.safetensors", entries);
  const auto first_with = [&](const std::vector<size_t>& changed) {
    std::vector<Entry> other = entries;
    for (const size_t i : changed) other[i].values[0] = 2;
    const DiffReport report =
        diff_tensors(write(folder / "a.safetensors", other), b, 0, silent_reporter());
    return std::pair(report.first_layer, report.first_tensor.value_or("none"));
  };
  using First = std::pair<std::optional<int64_t>, std::string>;
  EXPECT_EQ(first_with({0, 3}), First(10, "grad.model.layers.10.attn.A_log"));
  EXPECT_EQ(first_with({0, 1}), First(2, "grad.model.layers.2.attn.A_log"));
  EXPECT_EQ(first_with({0, 2, 3}), First(2, "hidden.3"));
  EXPECT_EQ(first_with({0, 4}), First(-1, "model.embeddings.weight"));
  EXPECT_EQ(first_with({3}), First(std::nullopt, "logits"));
  EXPECT_EQ(first_with({}), First(std::nullopt, "none"));
}

TEST(TensorDiffTest, FailsOnAnythingThatIsNotFiniteUnlessEqual) {
  const TemporaryFolder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto error = [&](float x, float y) {
    const auto a = write(folder / "a.safetensors", {{"u", {x, 1}}});
    const auto b = write(folder / "b.safetensors", {{"u", {y, 1}}});
    return diff_tensors(a, b, 1e9, silent_reporter()).tensors[0].relative_error;
  };
  EXPECT_EQ(error(nan, 1), infinity);
  EXPECT_EQ(error(1, nan), infinity);
  EXPECT_EQ(error(infinity, -infinity), infinity);
  EXPECT_EQ(error(infinity, infinity), 0);
  EXPECT_EQ(error(nan, nan), 0);
  EXPECT_EQ(error(1, 0), 1);
}

TEST(TensorDiffTest, ZeroReferenceAndIntegersMustBeEqual) {
  const TemporaryFolder folder;
  const auto zero = write(folder / "z.safetensors", {{"u", {0, 0}}});
  const auto tiny = write(folder / "t.safetensors", {{"u", {0, 1e-30F}}});
  EXPECT_TRUE(std::isinf(diff_tensors(tiny, zero, 1, silent_reporter()).tensors[0].relative_error));
  EXPECT_TRUE(diff_tensors(zero, zero, 0, silent_reporter()).passed());

  const auto integers = [&folder](const char* name, std::vector<int32_t> values) {
    formats::SafetensorsWriter writer(folder / name, {{"input_ids", DType::kI32, {3}}});
    writer.write("input_ids", 0, values.data(), 12);
    writer.commit();
    return folder / name;
  };
  const auto one = integers("i1.safetensors", {1, 2, 3});
  const auto two = integers("i2.safetensors", {1, 9, 3});
  EXPECT_TRUE(diff_tensors(one, one, 0, silent_reporter()).passed());
  const DiffReport report = diff_tensors(two, one, 1e9, silent_reporter());
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.tensors[0].num_different, 1);
}

TEST(TensorDiffTest, ComparesFloatsOfDifferentWidthByValue) {
  const TemporaryFolder folder;
  const auto wide = write(folder / "a.safetensors", {{"u", {1.5F, -2}}});
  formats::SafetensorsWriter writer(folder / "b.safetensors", {{"u", DType::kBF16, {2}}});
  const BFloat16 values[2] = {BFloat16(1.5F), BFloat16(-2.0F)};
  writer.write("u", 0, values, sizeof values);
  writer.commit();
  EXPECT_TRUE(diff_tensors(wide, folder / "b.safetensors", 0, silent_reporter()).passed());
}

TEST(DiffCommandTest, PrintsATableAndExitsWithFour) {
  const TemporaryFolder folder;
  const auto a =
      write(folder / "a.safetensors", {{"u", {1, 2}}, {"only_a", {1}}, {"shape", {1, 2}}});
  const auto b = write(folder / "b.safetensors", {{"u", {1, 2}}, {"only_b", {1}}, {"shape", {1}}});
  const auto result = test::run_program("diff " + a.string() + " " + b.string());
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(
      result.out,
      HasSubstr("missing: only_b\nextra: only_a\nmis-shaped: shape: expected f32 [1], got f32 [2]\n"
                "1 tensors compared, 0 past 0, 1 missing, 1 extra, 1 mis-shaped\n"));
  EXPECT_THAT(result.err, HasSubstr("expected the tensors of"));

  const auto json = test::run_program("diff --json " + a.string() + " " + b.string());
  EXPECT_EQ(json.exit_code, 4);
  const auto report = nlohmann::json::parse(json.out);
  EXPECT_FALSE(report["passed"].get<bool>());
  EXPECT_EQ(report["missing"], nlohmann::json({"only_b"}));

  EXPECT_EQ(test::run_program("diff " + a.string() + " " + a.string()).exit_code, 0);
  EXPECT_EQ(test::run_program("diff " + a.string() + " " + (folder / "nowhere").string()).exit_code,
            2);
  EXPECT_EQ(test::run_program("diff " + a.string()).exit_code, 2);
  EXPECT_EQ(
      test::run_program("diff " + a.string() + " " + a.string() + " --tolerance -1").exit_code, 2);
}

}  // namespace
}  // namespace deltatrain::convert
