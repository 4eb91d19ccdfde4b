// The default limits of `verify --against` against each mistake that a conversion is known for:
// weights in the wrong place, and the right weights computed with wrongly.

#include "verify/model_check.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "base/files.h"
#include "formats/safetensors.h"
#include "support/test_files.h"
#include "verify/model_runner.h"

namespace deltatrain::verify {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

struct Weight {
  Shape shape;
  std::vector<float> values;
};
using Weights = std::map<std::string, Weight>;

// Writes a golden model again as `change` makes it.
void write_changed(const std::string& model, const std::filesystem::path& to,
                   const std::function<void(Weights&)>& change) {
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(test::golden_path(model) / "config.json", to / "config.json");
  const formats::SafetensorsFolder golden(test::golden_path(model));
  Weights weights;
  for (const auto& [name, entry] : golden.tensors()) {
    Weight& weight = weights[name];
    weight.shape = entry.tensor->shape;
    weight.values.resize(static_cast<size_t>(weight.shape.num_elements()));
    std::memcpy(weight.values.data(), entry.tensor->bytes.data(), entry.tensor->bytes.size());
  }
  change(weights);
  std::vector<formats::TensorSpec> specs;
  for (const auto& [name, weight] : weights) specs.push_back({name, DType::kF32, weight.shape});
  formats::SafetensorsWriter writer(to / "model.safetensors", specs);
  for (const auto& [name, weight] : weights)
    writer.write(name, 0, weight.values.data(), static_cast<int64_t>(4 * weight.values.size()));
  writer.commit();
}

class ModelCheckTest : public ::testing::TestWithParam<std::string> {
 protected:
  static Context context(const ops::OpTable& table) {
    return Context{&backend_->device(), &table, nullptr, DType::kF32};
  }

  // What the default limits say of a model and a table of ops against the golden model.
  std::string verdict(const std::filesystem::path& folder, const ops::OpTable& table) const {
    constexpr int64_t kLength = 200;
    const Context planning{&plan_->device(), &plan_->table(), nullptr, DType::kF32};
    ModelRunner wrong(context(table), planning, folder, kLength);
    ModelRunner right(context(backend_->table()), planning, test::golden_path(GetParam()), kLength);
    Prompt row;
    for (int32_t i = 0; i < kLength; ++i)
      row.ids.push_back((i * i * 17 + 31 * i) % static_cast<int32_t>(right.config().vocab_size));
    return disagreement(compare(wrong, right, {row}, silent_reporter()), {});
  }
  std::string verdict(const std::function<void(Weights&)>& change) const {
    const TemporaryFolder folder;
    write_changed(GetParam(), folder / "changed", change);
    return verdict(folder / "changed", backend_->table());
  }
  std::string verdict(const ops::OpTable& table) const {
    return verdict(test::golden_path(GetParam()), table);
  }

  static void SetUpTestSuite() {
    backend_ = backend::make_backend(DeviceKind::kCpu).release();
    backend::BackendOptions planned;
    planned.planned = DeviceKind::kCpu;
    plan_ = backend::make_backend(DeviceKind::kPlan, planned).release();
    original_ = &backend_->table();
  }
  static void TearDownTestSuite() {
    delete backend_;
    delete plan_;
  }

  static backend::Backend* backend_;
  static backend::Backend* plan_;
  static const ops::OpTable* original_;  // for functions that stand in for an op
};

backend::Backend* ModelCheckTest::backend_ = nullptr;
backend::Backend* ModelCheckTest::plan_ = nullptr;
const ops::OpTable* ModelCheckTest::original_ = nullptr;

TEST_P(ModelCheckTest, TheSameModelPasses) {
  EXPECT_EQ(verdict([](Weights&) {}), "");
}

// Every square matrix of a block could have been stored the other way round.
TEST_P(ModelCheckTest, ATransposedProjectionIsFound) {
  std::vector<std::string> square;
  write_changed(GetParam(), TemporaryFolder() / "unused", [&square](Weights& weights) {
    for (const auto& [name, weight] : weights) {
      if (name.starts_with("model.layers.1.") && weight.shape.rank() == 2 &&
          weight.shape[0] == weight.shape[1])
        square.push_back(name);
    }
  });
  ASSERT_FALSE(square.empty());
  for (const std::string& name : square) {
    EXPECT_THAT(verdict([&name](Weights& weights) {
                  Weight& weight = weights.at(name);
                  const int64_t n = weight.shape[0];
                  for (int64_t i = 0; i < n; ++i) {
                    for (int64_t j = 0; j < i; ++j)
                      std::swap(weight.values[static_cast<size_t>(i * n + j)],
                                weight.values[static_cast<size_t>(j * n + i)]);
                  }
                }),
                HasSubstr("expected"))
        << name;
  }
}

// Taps 0, 0, 0, 1 are no convolution at all.
TEST_P(ModelCheckTest, AMissingConvolutionIsFound) {
  for (const char* part : {"q", "k", "v"}) {
    const std::string name = std::string("model.layers.1.attn.") + part + "_conv1d.weight";
    EXPECT_THAT(verdict([&name](Weights& weights) {
                  Weight& weight = weights.at(name);
                  const auto taps = static_cast<size_t>(weight.shape[2]);
                  for (size_t i = 0; i < weight.values.size(); ++i)
                    weight.values[i] = i % taps == taps - 1 ? 1.0F : 0.0F;
                }),
                HasSubstr("expected"))
        << name;
  }
  // Left out of the file, it is missed before anything is computed.
  try {
    verdict([](Weights& weights) { weights.erase("model.layers.1.attn.k_conv1d.weight"); });
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 missing (model.layers.1.attn.k_conv1d.weight)"));
  }
}

class HybridCheckTest : public ModelCheckTest {};

// Rows of the rotary parts as Megatron has them: neighbours are a pair, instead of halves.
TEST_P(HybridCheckTest, AWrongRotaryLayoutIsFound) {
  const auto config =
      nlohmann::json::parse(read_file(test::golden_path(GetParam()) / "config.json"))["attn"];
  const auto nope = config["qk_nope_head_dim"].get<int64_t>();
  const auto rope = config["qk_rope_head_dim"].get<int64_t>();
  const auto heads = config["num_heads"].get<int64_t>();
  const auto interleave = [rope](Weight& weight, int64_t first) {
    const auto width = static_cast<size_t>(weight.shape[1]);
    const std::vector<float> before = weight.values;
    for (int64_t j = 0; j < rope; ++j) {
      const int64_t from = j % 2 == 0 ? j / 2 : rope / 2 + j / 2;
      std::memcpy(weight.values.data() + static_cast<size_t>(first + j) * width,
                  before.data() + static_cast<size_t>(first + from) * width, width * 4);
    }
  };
  const auto queries = [&](Weights& weights) {
    for (int64_t head = 0; head < heads; ++head)
      interleave(weights.at("model.layers.0.attn.q_proj.2.weight"), head * (nope + rope) + nope);
  };
  const auto keys = [&](Weights& weights) {
    interleave(weights.at("model.layers.0.attn.k_rope.weight"), 0);
  };
  EXPECT_THAT(verdict(queries), HasSubstr("expected"));
  EXPECT_THAT(verdict(keys), HasSubstr("expected"));
  EXPECT_THAT(verdict([&](Weights& weights) {
                queries(weights);
                keys(weights);
              }),
              HasSubstr("expected"));
}

TEST_P(ModelCheckTest, AWrongEpsilonIsFound) {
  ops::OpTable table = *original_;
  table.rms_norm.forward = [](const Context& context, const ops::RmsNormForward& args) {
    ops::RmsNormForward wrong = args;
    wrong.eps = 10 * args.eps;
    original_->rms_norm.forward(context, wrong);
  };
  EXPECT_THAT(verdict(table), HasSubstr("expected")) << "norms of the stream and of ranks";
  table = *original_;
  table.gated_rms_norm.forward = [](const Context& context, const ops::GatedRmsNormForward& args) {
    ops::GatedRmsNormForward wrong = args;
    wrong.eps = 10 * args.eps;
    original_->gated_rms_norm.forward(context, wrong);
  };
  EXPECT_THAT(verdict(table), HasSubstr("expected")) << "norm of the delta rule's output";
}

TEST_P(ModelCheckTest, ASwappedGateActivationIsFound) {
  ops::OpTable table = *original_;
  table.gated_rms_norm.forward = [](const Context& context, const ops::GatedRmsNormForward& args) {
    ops::GatedRmsNormForward wrong = args;
    wrong.activation = args.activation == ops::GateActivation::kSilu ? ops::GateActivation::kSigmoid
                                                                     : ops::GateActivation::kSilu;
    original_->gated_rms_norm.forward(context, wrong);
  };
  EXPECT_THAT(verdict(table), HasSubstr("expected"));
}

INSTANTIATE_TEST_SUITE_P(Models, ModelCheckTest,
                         ::testing::Values("tiny_gdn", "tiny_kda", "tiny_hybrid"));
INSTANTIATE_TEST_SUITE_P(Models, HybridCheckTest, ::testing::Values("tiny_hybrid"));

// Sizes that a config.json claims are compared with the tensors before anything is allocated.
TEST(HostileConfigTest, ClaimedSizesAreRefusedByKeyBeforeAnythingIsAllocated) {
  const TemporaryFolder folder;
  std::filesystem::copy(test::golden_path("tiny_gdn"), folder / "model");
  const auto path = folder / "model/config.json";
  const auto golden = nlohmann::json::parse(read_file(path));
  for (const auto& [key, claimed] : std::map<std::string, int64_t>{{"vocab_size", 2147483647},
                                                                   {"hidden_size", 1048576},
                                                                   {"intermediate_size", 1048576},
                                                                   {"num_hidden_layers", 4096},
                                                                   {"num_v_heads", 65536},
                                                                   {"head_dim", 65536},
                                                                   {"conv_size", 64}}) {
    auto config = golden;
    config[key] = claimed;
    write_file_atomically(path, config.dump());
    const bool is_shown = key != "num_v_heads" && key != "head_dim" && key != "conv_size";
    for (const char* command :
         {"verify", "generate --model", "eval --tasks arc_easy --data . --out out --model",
          "dump --input ids.json --out d.safetensors --model"}) {
      const auto result =
          test::run_program(std::string(command) + " " + (folder / "model").string());
      EXPECT_EQ(result.exit_code, 2) << command << " " << key << ": " << result.err;
      EXPECT_THAT(result.err, HasSubstr((folder / "model").string())) << command;
      if (is_shown) {
        EXPECT_THAT(result.err, HasSubstr("config.json: " + key + ": expected ")) << command;
        EXPECT_THAT(result.err, HasSubstr(", got " + std::to_string(claimed))) << command;
      } else {
        EXPECT_THAT(result.err, HasSubstr("expected the tensors of the model")) << command;
      }
    }
  }
}

}  // namespace
}  // namespace deltatrain::verify
