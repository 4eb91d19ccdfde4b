#include "convert/parameter_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "config/hf_config.h"
#include "model/model.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

std::vector<std::string> lines(const std::vector<formats::TensorSpec>& specs) {
  std::vector<std::string> result;
  for (const formats::TensorSpec& spec : specs)
    result.push_back(spec.name + " " + to_string(spec.shape));
  return result;
}

ModelConfig read_config(const std::string& name) {
  const auto path = test::golden_path(name) / "config.json";
  return model_config_from_hf(read_file(path), path.string());
}

// The engine's own registry is the other list of parameters; the two must not drift apart.
void expect_registry_agrees(const ModelConfig& config) {
  const Model model(config);
  std::vector<formats::TensorSpec> registered;
  for (const layers::ParameterInfo& info : model.parameters().infos()) {
    registered.push_back({info.name, DType::kF32, info.checkpoint_shape});
  }
  std::sort(registered.begin(), registered.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  EXPECT_EQ(lines(model_parameters(config)), lines(registered));
}

class ParameterTableTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ParameterTableTest, EqualsTheTensorsOfTheReference) {
  const formats::SafetensorsFolder folder(test::golden_path(GetParam()));
  std::vector<formats::TensorSpec> stored;
  for (const auto& [name, entry] : folder.tensors()) {
    stored.push_back({name, entry.tensor->dtype, entry.tensor->shape});
  }
  EXPECT_EQ(lines(model_parameters(read_config(GetParam()))), lines(stored));
}

TEST_P(ParameterTableTest, EqualsTheModelsRegistryAndCount) {
  ModelConfig config = read_config(GetParam());
  expect_registry_agrees(config);
  int64_t count = 0;
  for (const formats::TensorSpec& spec : model_parameters(config))
    count += spec.shape.num_elements();
  EXPECT_EQ(count, count_parameters(config));

  config.tie_word_embeddings = false;
  expect_registry_agrees(config);
  if (config.attn) {
    config.attn->q_lora_rank.reset();
    expect_registry_agrees(config);
    config.attn->double_norms = true;
    expect_registry_agrees(config);
    config.attn->q_lora_rank = 8;
    expect_registry_agrees(config);
    count = 0;
    for (const formats::TensorSpec& spec : model_parameters(config))
      count += spec.shape.num_elements();
    EXPECT_EQ(count, count_parameters(config));
  }
}

INSTANTIATE_TEST_SUITE_P(TinyModels, ParameterTableTest,
                         ::testing::Values("tiny_gdn", "tiny_kda", "tiny_hybrid"));

}  // namespace
}  // namespace deltatrain::convert
