// Megatron's checkpoints: where every parameter lies, both specs, both ways, and what is refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <span>

#include "base/error.h"
#include "base/files.h"
#include "config/hf_config.h"
#include "config/models.h"
#include "convert/convert.h"
#include "convert/megatron_layout.h"
#include "convert/megatron_source.h"
#include "convert/parameter_table.h"
#include "formats/torch_file.h"
#include "support/small_models.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

using formats::PickleKind;
using formats::PickleValue;
using formats::TorchFile;
using test::TemporaryFolder;
using ::testing::HasSubstr;

constexpr const char* kFile = "iter_0000000/mp_rank_00/model_optim_rng.pt";

// A small model of every family whose widths are all different, so that a row in another's place
// shows; the vocabulary is no multiple of 128.
ModelConfig uneven_model(ModelFamily family, bool attention) {
  ModelConfig c = test::small_model(family, attention, 100);
  c.hidden_size = 24;
  c.intermediate_size = 20;
  c.num_hidden_layers = 2;
  c.head_dim = 6;
  c.expand_v = 1.5;
  c.tie_word_embeddings = false;
  if (!attention) return c;
  c.attn->q_lora_rank = 10;
  c.attn->kv_lora_rank = 7;
  c.attn->qk_nope_head_dim = 3;
  c.attn->qk_rope_head_dim = 4;
  c.attn->v_head_dim = 5;
  return c;
}

// Writes a Hugging Face folder whose value at row r of the i-th parameter is value(i, r).
template <class Value>
void write_model_folder(const std::filesystem::path& folder, const ModelConfig& config, DType dtype,
                        const Value& value) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << model_config_to_hf(config, dtype);
  std::vector<formats::TensorSpec> specs = model_parameters(config);
  for (formats::TensorSpec& spec : specs) spec.dtype = dtype;
  formats::SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t count = specs[i].shape.num_elements();
    const int64_t width = count / specs[i].shape[0];
    std::string bytes;
    for (int64_t e = 0; e < count; ++e) {
      const float number = value(static_cast<int64_t>(i), e / width);
      const BFloat16 narrow(number);
      bytes.append(dtype == DType::kF32 ? reinterpret_cast<const char*>(&number)
                                        : reinterpret_cast<const char*>(&narrow.bits),
                   static_cast<size_t>(dtype_bytes(dtype)));
    }
    writer.write(specs[i].name, 0, bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  writer.commit();
}

TargetOptions target(const std::filesystem::path& to, TargetFormat format,
                     LayerSpec spec = LayerSpec::kNoTe) {
  TargetOptions options;
  options.to = to;
  options.format = format;
  options.layer_spec = spec;
  options.round_trip = true;
  return options;
}

// The first value of each row of a tensor in the file.
std::vector<float> rows_of(const TorchFile& file, const std::string& name) {
  const PickleValue* value = file.root().find("model")->find(name);
  if (value == nullptr) return {};
  const formats::TorchTensor tensor = file.tensor(*value, name);
  const int64_t count = tensor.shape.num_elements();
  const int64_t rows = tensor.shape[0] == 1 && tensor.shape.rank() == 4 ? count : tensor.shape[0];
  std::vector<float> all(static_cast<size_t>(count));
  EXPECT_EQ(tensor.dtype, DType::kF32) << name;
  file.read(tensor, 0, count, all.data());
  std::vector<float> result;
  for (int64_t row = 0; row < rows; ++row)
    result.push_back(all[static_cast<size_t>(row * (count / rows))]);
  return result;
}

class LayoutTest : public ::testing::TestWithParam<LayerSpec> {
 protected:
  // Converts a model whose parameters are constants of their own and keeps number -> constant.
  void make(const ModelConfig& config) {
    std::vector<formats::TensorSpec> specs = model_parameters(config);
    for (size_t i = 0; i < specs.size(); ++i) constants_[specs[i].name] = static_cast<float>(i + 1);
    write_model_folder(folder_ / "hf", config, DType::kF32,
                       [](int64_t i, int64_t) { return static_cast<float>(i + 1); });
    convert_model(folder_ / "hf", target(folder_ / "out", TargetFormat::kMegatron, GetParam()),
                  silent_reporter());
    file_ = std::make_unique<TorchFile>(folder_ / (std::string("out/") + kFile));
  }

  // Expects rows made of the named parameters, `count` rows each.
  void expect(const std::string& name, std::vector<std::pair<std::string, int64_t>> parts) {
    std::vector<float> wanted;
    for (const auto& [part, count] : parts)
      wanted.insert(wanted.end(), static_cast<size_t>(count), constants_.at(part));
    EXPECT_EQ(rows_of(*file_, name), wanted) << name;
    ++checked_;
  }

  size_t num_tensors() const { return file_->root().find("model")->items().size() / 2; }

  TemporaryFolder folder_;
  std::map<std::string, float> constants_;
  std::unique_ptr<TorchFile> file_;
  size_t checked_ = 0;
};

// Row counts from the published layout: q K, k K, v V, gate V, beta, alpha.
TEST_P(LayoutTest, EveryParameterOfGdnLandsWhereItBelongs) {
  make(uneven_model(ModelFamily::kGatedDeltaNet, false));
  const bool te = GetParam() == LayerSpec::kTe;
  for (const int b : {0, 1}) {
    const std::string from = "model.layers." + std::to_string(b) + ".";
    const std::string mixer = "decoder.layers." + std::to_string(2 * b) + ".";
    const std::string mlp = "decoder.layers." + std::to_string(2 * b + 1) + ".";
    expect(mixer + "mixer.in_proj.weight", {{from + "attn.q_proj.weight", 12},
                                            {from + "attn.k_proj.weight", 12},
                                            {from + "attn.v_proj.weight", 36},
                                            {from + "attn.g_proj.weight", 36},
                                            {from + "attn.b_proj.weight", 4},
                                            {from + "attn.a_proj.weight", 4}});
    expect(mixer + "mixer.conv1d.weight", {{from + "attn.q_conv1d.weight", 12},
                                           {from + "attn.k_conv1d.weight", 12},
                                           {from + "attn.v_conv1d.weight", 36}});
    expect(mixer + "mixer.A_log", {{from + "attn.A_log", 4}});
    expect(mixer + "mixer.dt_bias", {{from + "attn.dt_bias", 4}});
    expect(mixer + "mixer.out_norm.weight", {{from + "attn.o_norm.weight", 9}});
    expect(mixer + "mixer.out_proj.weight", {{from + "attn.o_proj.weight", 24}});
    expect(mixer + (te ? "mixer.in_proj.layer_norm_weight" : "norm.weight"),
           {{from + "attn_norm.weight", 24}});
    expect(mlp + "mlp.linear_fc1.weight",
           {{from + "mlp.gate_proj.weight", 20}, {from + "mlp.up_proj.weight", 20}});
    expect(mlp + "mlp.linear_fc2.weight", {{from + "mlp.down_proj.weight", 24}});
    expect(mlp + (te ? "mlp.linear_fc1.layer_norm_weight" : "pre_mlp_layernorm.weight"),
           {{from + "mlp_norm.weight", 24}});
  }
  expect("decoder.final_norm.weight", {{"model.norm.weight", 24}});
  // Padding rows are the mean of the others.
  expect("embedding.word_embeddings.weight", {{"model.embeddings.weight", 128}});
  expect("output_layer.weight", {{"lm_head.weight", 128}});
  EXPECT_EQ(checked_, num_tensors());
}

TEST_P(LayoutTest, EveryParameterOfKdaLandsWhereItBelongs) {
  make(uneven_model(ModelFamily::kKda, false));
  const bool te = GetParam() == LayerSpec::kTe;
  const std::string from = "model.layers.1.";
  const std::string to = "decoder.layers.2.";
  expect(to + "mixer.in_proj.weight", {{from + "attn.q_proj.weight", 12},
                                       {from + "attn.k_proj.weight", 12},
                                       {from + "attn.v_proj.weight", 36},
                                       {from + "attn.f_proj.0.weight", 9},
                                       {from + "attn.g_proj.0.weight", 9},
                                       {from + "attn.b_proj.weight", 4}});
  expect(to + "mixer.conv1d.weight", {{from + "attn.q_conv1d.weight", 12},
                                      {from + "attn.k_conv1d.weight", 12},
                                      {from + "attn.v_conv1d.weight", 36}});
  expect(to + "mixer.f_b_proj.weight", {{from + "attn.f_proj.1.weight", 24}});
  expect(to + "mixer.g_b_proj.weight", {{from + "attn.g_proj.1.weight", 36}});
  expect(to + "mixer.g_b_proj.bias", {{from + "attn.g_proj.1.bias", 36}});
  expect(to + "mixer.A_log", {{from + "attn.A_log", 4}});
  expect(to + "mixer.dt_bias", {{from + "attn.dt_bias", 24}});
  expect(to + "mixer.out_norm.weight", {{from + "attn.o_norm.weight", 9}});
  expect(to + "mixer.out_proj.weight", {{from + "attn.o_proj.weight", 24}});
  expect(to + (te ? "mixer.in_proj.layer_norm_weight" : "norm.weight"),
         {{from + "attn_norm.weight", 24}});
  const PickleValue& a_log = *file_->root().find("model")->find(to + "mixer.A_log");
  EXPECT_EQ(file_->tensor(a_log, "").shape, (Shape{1, 1, 4, 1}));
  const std::vector<float> gate_norm = rows_of(*file_, to + "mixer.gate_norm.weight");
  EXPECT_EQ(gate_norm, te ? std::vector<float>(24, 1.0F) : std::vector<float>());
}

INSTANTIATE_TEST_SUITE_P(Specs, LayoutTest, ::testing::Values(LayerSpec::kNoTe, LayerSpec::kTe),
                         [](const auto& tested) {
                           return tested.param == LayerSpec::kTe ? std::string("te")
                                                                 : std::string("no_te");
                         });

// Row r of every parameter holds r: the order of rows within a parameter shows.
TEST(MegatronAttentionTest, RowsOfLatentAttentionAreInMegatronsRotaryOrder) {
  const TemporaryFolder folder;
  const ModelConfig config = uneven_model(ModelFamily::kGatedDeltaNet, true);
  write_model_folder(folder / "hf", config, DType::kF32,
                     [](int64_t, int64_t row) { return static_cast<float>(row); });
  convert_model(folder / "hf", target(folder / "out", TargetFormat::kMegatron), silent_reporter());
  const TorchFile file(folder / (std::string("out/") + kFile));
  const std::string at = "decoder.layers.2.";
  // Per head 3 rows without position, then 4 with: FLA's halves (0, 1 | 2, 3) become pairs.
  EXPECT_EQ(rows_of(file, at + "self_attention.linear_q_up_proj.weight"),
            (std::vector<float>{0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 12, 11, 13}));
  EXPECT_EQ(rows_of(file, at + "self_attention.linear_kv_down_proj.weight"),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 0, 2, 1, 3}));
  std::vector<float> plain(16);
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<float>(i);
  EXPECT_EQ(rows_of(file, at + "self_attention.linear_kv_up_proj.weight"), plain);
  EXPECT_EQ(rows_of(file, at + "self_attention.q_layernorm.weight").size(), 10U);
  EXPECT_EQ(rows_of(file, at + "self_attention.kv_layernorm.weight").size(), 7U);
  EXPECT_EQ(rows_of(file, at + "input_layernorm.weight").size(), 24U);
  EXPECT_EQ(rows_of(file, at + "self_attention.linear_proj.weight").size(), 24U);
}

TEST(MegatronLayoutTest, PublishedModelsHaveThePublishedShapes) {
  const auto shape_of = [](const ModelConfig& config, LayerSpec spec, const std::string& name) {
    for (const MegatronTensor& tensor :
         megatron_tensors(config, spec, padded_vocabulary(config.vocab_size))) {
      if (tensor.rows.name == name) return to_string(tensor.rows.shape);
    }
    return std::string("none");
  };
  const std::string at = "decoder.layers.2.mixer.";
  const LayerSpec te = LayerSpec::kTe;
  EXPECT_EQ(shape_of(test::gdn_300m(), te, at + "in_proj.weight"), "[1552, 1024]");
  EXPECT_EQ(shape_of(test::gdn_300m(), te, at + "conv1d.weight"), "[1024, 1, 4]");
  EXPECT_EQ(shape_of(test::gdn_300m(), te, at + "out_proj.weight"), "[1024, 512]");
  EXPECT_EQ(shape_of(test::gdn_1b(), te, at + "in_proj.weight"), "[3104, 2048]");
  EXPECT_EQ(shape_of(test::gdn_1b(), te, at + "out_proj.weight"), "[2048, 1024]");
  EXPECT_EQ(shape_of(test::kda_300m(), te, at + "in_proj.weight"), "[1160, 1024]");
  EXPECT_EQ(shape_of(test::kda_300m(), te, at + "f_b_proj.weight"), "[256, 64]");
  EXPECT_EQ(shape_of(test::kda_300m(), te, at + "g_b_proj.weight"), "[512, 64]");
  EXPECT_EQ(shape_of(test::kda_1b(), te, at + "in_proj.weight"), "[2192, 2048]");
  EXPECT_EQ(shape_of(test::gdn_300m(), te, "embedding.word_embeddings.weight"), "[128256, 1024]");
  EXPECT_EQ(padded_vocabulary(131073), 131200);
  EXPECT_EQ(padded_vocabulary(32000), 32000);
}

struct RoundTripCase {
  const char* name;
  ModelFamily family;
  bool attention;
  LayerSpec spec;
};

// All that stream() gives of the weights, which it may give in any order.
std::map<std::string, std::vector<float>> streamed(const WeightSource& source) {
  std::map<std::string, std::vector<float>> all;
  std::vector<std::string> names;
  for (const formats::TensorSpec& spec : source.tensors()) {
    names.push_back(spec.name);
    all[spec.name].assign(static_cast<size_t>(spec.shape.num_elements()), std::nanf(""));
  }
  source.stream(StatePart::kMaster, names,
                [&all](const std::string& name, int64_t begin, std::span<const float> values) {
                  ASSERT_LE(begin + static_cast<int64_t>(values.size()),
                            static_cast<int64_t>(all.at(name).size()));
                  std::copy(values.begin(), values.end(), all.at(name).begin() + begin);
                });
  return all;
}

class MegatronRoundTripTest : public ::testing::TestWithParam<RoundTripCase> {};

TEST_P(MegatronRoundTripTest, MegatronToHuggingFaceAndBackIsTheSameFile) {
  const TemporaryFolder folder;
  ModelConfig config = uneven_model(GetParam().family, GetParam().attention);
  config.vocab_size = 128;  // no padding, whose rows a Hugging Face folder doesn't hold
  uint32_t state = 1;
  write_model_folder(folder / "start", config, DType::kBF16, [&state](int64_t, int64_t) {
    state = state * 1664525 + 1013904223;
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
  });
  const LayerSpec spec = GetParam().spec;
  convert_model(folder / "start", target(folder / "a", TargetFormat::kMegatron, spec),
                silent_reporter());
  convert_model(folder / "a", target(folder / "hf", TargetFormat::kHuggingFace), silent_reporter());
  convert_model(folder / "hf", target(folder / "b", TargetFormat::kMegatron, spec),
                silent_reporter());
  EXPECT_EQ(read_file(folder / (std::string("a/") + kFile)),
            read_file(folder / (std::string("b/") + kFile)));
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"),
            read_file(folder / "start/model.safetensors"));
  EXPECT_EQ(streamed(*open_weights(folder / "a")), streamed(*open_weights(folder / "start")));
}

INSTANTIATE_TEST_SUITE_P(
    Models, MegatronRoundTripTest,
    ::testing::Values(RoundTripCase{"gdn_no_te", ModelFamily::kGatedDeltaNet, false,
                                    LayerSpec::kNoTe},
                      RoundTripCase{"gdn_te", ModelFamily::kGatedDeltaNet, false, LayerSpec::kTe},
                      RoundTripCase{"kda_no_te", ModelFamily::kKda, false, LayerSpec::kNoTe},
                      RoundTripCase{"kda_te", ModelFamily::kKda, false, LayerSpec::kTe},
                      RoundTripCase{"gdn_mla", ModelFamily::kGatedDeltaNet, true, LayerSpec::kNoTe},
                      RoundTripCase{"kda_mla", ModelFamily::kKda, true, LayerSpec::kNoTe}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(MegatronVocabularyTest, PaddingRowsAreCutAndAdded) {
  const TemporaryFolder folder;
  const ModelConfig config = uneven_model(ModelFamily::kGatedDeltaNet, false);
  write_model_folder(folder / "hf", config, DType::kF32,
                     [](int64_t, int64_t row) { return static_cast<float>(row); });
  convert_model(folder / "hf", target(folder / "out", TargetFormat::kMegatron), silent_reporter());
  const TorchFile file(folder / (std::string("out/") + kFile));
  const std::vector<float> rows = rows_of(file, "embedding.word_embeddings.weight");
  ASSERT_EQ(rows.size(), 128U);
  EXPECT_EQ(rows[99], 99);
  EXPECT_EQ(rows[100], 49.5F);  // the mean of 0 to 99
  EXPECT_EQ(rows[127], 49.5F);
  convert_model(folder / "out", target(folder / "back", TargetFormat::kHuggingFace),
                silent_reporter());
  EXPECT_EQ(read_file(folder / "back/model.safetensors"),
            read_file(folder / "hf/model.safetensors"));
}

// A Megatron file with a Namespace and no config.json beside, which says its own model.
class ForeignTest : public ::testing::Test {
 protected:
  void make(const ModelConfig& config, LayerSpec spec = LayerSpec::kNoTe) {
    write_model_folder(folder_ / "hf", config, DType::kF32,
                       [](int64_t i, int64_t) { return static_cast<float>(i + 1); });
    TargetOptions options = target(folder_ / "out", TargetFormat::kMegatron, spec);
    options.megatron_args = MegatronArgsMode::kNamespace;
    options.round_trip = false;
    convert_model(folder_ / "hf", options, silent_reporter());
    std::filesystem::remove(folder_ / "out/iter_0000000/config.json");
  }

  // Replaces a text in the file by another of the same length. The pickle's CRC-32 is no hindrance:
  // 0 means "not computed".
  void replace(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    const auto path = folder_ / (std::string("out/") + kFile);
    std::string bytes = read_file(path);
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    const size_t directory = bytes.find("PK\x01\x02");
    bytes.replace(directory + 16, 4, std::string(4, '\0'));
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::string refusal(const OpenOptions& options = {}) const {
    try {
      const auto source = open_weights(folder_ / "out", options);
      return source->differences().none() ? "accepted" : source->differences().summary();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
  }

  TemporaryFolder folder_;
};

TEST_F(ForeignTest, TheNamespaceSaysTheModel) {
  for (const bool attention : {false, true}) {
    const TemporaryFolder unused;
    ModelConfig config = uneven_model(ModelFamily::kKda, attention);
    std::filesystem::remove_all(folder_ / "hf");
    std::filesystem::remove_all(folder_ / "out");
    make(config);
    config.bos_token_id = config.eos_token_id = std::nullopt;
    ModelConfig read = open_weights(folder_ / "out")->config();
    EXPECT_EQ(read, config);
  }
}

TEST_F(ForeignTest, AnotherModelThanTheArgsSayIsRefused) {
  ModelConfig config = uneven_model(ModelFamily::kGatedDeltaNet, false);
  make(config);
  OpenOptions options;
  options.config = config;
  EXPECT_EQ(refusal(options), "accepted");
  options.config->norm_eps = 1e-5;
  EXPECT_THAT(refusal(options), HasSubstr("model.norm_eps: expected 1e-06 as the checkpoint's args "
                                          "say, got 1e-05"));
  options.config = uneven_model(ModelFamily::kKda, false);
  EXPECT_THAT(refusal(options), HasSubstr("missing (decoder.layers.0.mixer.f_b_proj.weight"));
}

TEST_F(ForeignTest, EveryDifferenceOfTheTensorsIsListedAndNothingWritten) {
  make(uneven_model(ModelFamily::kGatedDeltaNet, false));
  replace("decoder.layers.0.mixer.A_log", "decoder.layers.0.mixer.B_log");
  const auto result = test::run_program("convert --from " + (folder_ / "out").string() + " --to " +
                                        (folder_ / "back").string() + " --format hf");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out, HasSubstr("1 missing, 1 extra, 0 shape mismatches\n"
                                    "missing: decoder.layers.0.mixer.A_log\n"
                                    "extra: decoder.layers.0.mixer.B_log\n"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "back"));
}

TEST_F(ForeignTest, LeakedModelsAreRefusedByName) {
  make(uneven_model(ModelFamily::kGatedDeltaNet, false), LayerSpec::kTe);
  replace("decoder.layers.0.mixer.in_proj.layer_norm_weight",
          "decoder.layers.0.mixer.in_projxx.layer_norm_bias");
  EXPECT_THAT(refusal(), HasSubstr("LayerNorm with biases, which is another model"));
}

TEST_F(ForeignTest, LeakedArgsAreRefusedByName) {
  make(uneven_model(ModelFamily::kGatedDeltaNet, false));
  replace("RMSNorm", "RMSnorm");
  EXPECT_THAT(refusal(), HasSubstr("args.normalization: expected RMSNorm, got RMSnorm, which makes "
                                   "another model"));
}

TEST_F(ForeignTest, SeparateProjectionsAreExplained) {
  make(uneven_model(ModelFamily::kGatedDeltaNet, true));
  replace("decoder.layers.0.mixer.out_norm.weight", "decoder.layers.000.mixer.q_proj.weight");
  EXPECT_THAT(refusal(), HasSubstr("KDA with separate projections"));
}

TEST_F(ForeignTest, ModelsInPartsAndOtherFormsAreNamed) {
  make(uneven_model(ModelFamily::kGatedDeltaNet, false));
  std::filesystem::create_directory(folder_ / "out/iter_0000000/mp_rank_01");
  EXPECT_THAT(refusal(), HasSubstr("mp_rank_01: a model in parts"));
  std::filesystem::remove_all(folder_ / "out/iter_0000000");
  std::filesystem::create_directory(folder_ / "out/iter_0000000");
  std::ofstream(folder_ / "out/iter_0000000/metadata.json") << "{}";
  EXPECT_THAT(refusal(), HasSubstr("a checkpoint in torch_dist or torch_dcp form"));
}

TEST_F(ForeignTest, WithoutArgsAndConfigTheModelHasToBeGiven) {
  const ModelConfig config = uneven_model(ModelFamily::kGatedDeltaNet, false);
  write_model_folder(folder_ / "hf", config, DType::kF32, [](int64_t, int64_t) { return 1.0F; });
  convert_model(folder_ / "hf", target(folder_ / "out", TargetFormat::kMegatron),
                silent_reporter());
  std::filesystem::rename(folder_ / "out/iter_0000000/config.json", folder_ / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("args or a config.json beside, which say what the model is, got "
                                   "neither; --config"));
  const auto result = test::run_program("convert --from " + (folder_ / "out").string() + " --to " +
                                        (folder_ / "back").string() + " --format hf --config " +
                                        (folder_ / "config.json").string());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(folder_ / "back/model.safetensors"),
            read_file(folder_ / "hf/model.safetensors"));
}

// A tensor of a file that a test makes: rows of one value each, in runs.
struct MadeTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

// A Megatron checkpoint of one file under `folder`: the weights as f32, and extra states of
// Transformer Engine in the three kinds there are.
void write_checkpoint(const std::filesystem::path& folder, const std::vector<MadeTensor>& tensors) {
  std::filesystem::create_directories(folder / "iter_0000007/mp_rank_00");
  std::ofstream(folder / "latest_checkpointed_iteration.txt") << "7";
  formats::TorchFileWriter writer(folder / "iter_0000007/mp_rank_00/model_optim_rng.pt");
  formats::PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("iteration");
  pickle.integer(7);
  pickle.text("model");
  pickle.begin_ordered_dict();
  for (const MadeTensor& tensor : tensors) {
    pickle.text(tensor.name);
    writer.announce(DType::kF32, tensor.shape, pickle);
  }
  pickle.text("decoder.layers.0.mixer.in_proj._extra_state");
  pickle.none();
  pickle.text("decoder.layers.1.mlp.linear_fc1._extra_state");
  writer.announce(DType::kU8, {3}, pickle);
  pickle.text("decoder.final_norm._extra_state");
  pickle.global("_io", "BytesIO");
  pickle.begin_tuple();
  pickle.bytes("state");
  pickle.end_tuple();
  pickle.call();
  pickle.end_dict();
  pickle.end_dict();
  writer.write_tree(pickle.finish());
  for (const MadeTensor& tensor : tensors) {
    writer.begin_tensor();
    writer.write(tensor.values.data(), static_cast<int64_t>(4 * tensor.values.size()));
  }
  writer.begin_tensor();
  writer.write("abc", 3);
  writer.commit();
}

// A small hybrid under Transformer Engine, block 1 with latent attention, named and ordered as
// published: every tensor holds a number of its own, and the rotary rows their place.
std::vector<MadeTensor> transformer_engine_hybrid() {
  std::vector<MadeTensor> tensors;
  const auto add = [&tensors](const std::string& name, const Shape& shape,
                              std::vector<std::pair<float, int64_t>> runs = {}) {
    const int64_t count = shape.num_elements();
    if (runs.empty()) runs = {{static_cast<float>(tensors.size() + 1), shape[0]}};
    MadeTensor tensor{name, shape, {}};
    for (const auto& [value, rows] : runs)
      tensor.values.insert(tensor.values.end(), static_cast<size_t>(rows * (count / shape[0])),
                           value);
    EXPECT_EQ(static_cast<int64_t>(tensor.values.size()), count) << name;
    tensors.push_back(std::move(tensor));
  };
  const std::string mixer = "decoder.layers.0.", attention = "decoder.layers.2.";
  add("embedding.word_embeddings.weight", {128, 24});
  add(mixer + "mixer.dt_bias", {4});
  add(mixer + "mixer.A_log", {4});
  add(mixer + "mixer.in_proj.layer_norm_weight", {24});
  add(mixer + "mixer.in_proj.weight", {104, 24},
      {{101, 12}, {102, 12}, {103, 36}, {104, 36}, {105, 4}, {106, 4}});
  add(mixer + "mixer.conv1d.weight", {60, 1, 4}, {{111, 12}, {112, 12}, {113, 36}});
  add(mixer + "mixer.out_norm.weight", {9});
  add(mixer + "mixer.out_proj.weight", {24, 36});
  add(attention + "input_layernorm.weight", {24}, {{121, 24}});
  add(attention + "self_attention.linear_proj.weight", {24, 10}, {{122, 24}});
  add(attention + "self_attention.linear_q_down_proj.weight", {10, 24}, {{123, 10}});
  add(attention + "self_attention.linear_q_up_proj.layer_norm_weight", {10}, {{124, 10}});
  // Two heads of three rows without position and two rotary pairs.
  std::vector<std::pair<float, int64_t>> rows;
  for (int row = 0; row < 14; ++row) rows.emplace_back(static_cast<float>(200 + row), 1);
  add(attention + "self_attention.linear_q_up_proj.weight", {14, 10}, rows);
  rows = {{125, 7}};
  for (int row = 0; row < 4; ++row) rows.emplace_back(static_cast<float>(300 + row), 1);
  add(attention + "self_attention.linear_kv_down_proj.weight", {11, 24}, rows);
  add(attention + "self_attention.linear_kv_up_proj.layer_norm_weight", {7}, {{126, 7}});
  add(attention + "self_attention.linear_kv_up_proj.weight", {16, 7}, {{127, 16}});
  add(attention + "self_attention.q_layernorm.weight", {10}, {{128, 10}});
  add(attention + "self_attention.kv_layernorm.weight", {7}, {{129, 7}});
  for (const int b : {0, 1}) {
    const std::string mlp = "decoder.layers." + std::to_string(2 * b + 1) + ".mlp.";
    const auto base = static_cast<float>(130 + 10 * b);
    add(mlp + "linear_fc1.layer_norm_weight", {24}, {{base, 24}});
    add(mlp + "linear_fc1.weight", {40, 24}, {{base + 1, 20}, {base + 2, 20}});
    add(mlp + "linear_fc2.weight", {24, 20}, {{base + 3, 24}});
  }
  add("decoder.final_norm.weight", {24});
  add("output_layer.weight", {128, 24});
  return tensors;
}

ModelConfig double_norm_model() {
  ModelConfig config = uneven_model(ModelFamily::kGatedDeltaNet, true);
  config.vocab_size = 128;
  config.attn->double_norms = true;
  return config;
}

TEST(MegatronDoubleNormTest, TransformerEngineHybridsAreReadWithBothNorms) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "in", transformer_engine_hybrid());
  OpenOptions options;
  options.config = double_norm_model();
  EXPECT_THAT(open_weights(folder / "in", options)->describe(), HasSubstr("te layer spec"));
  const ConvertReport report = convert_model(
      folder / "in", target(folder / "native", TargetFormat::kNative), silent_reporter(), options);
  EXPECT_TRUE(report.written && report.round_trip_exact);
  const auto native = open_weights(folder / "native");
  EXPECT_EQ(native->step(), 7);
  EXPECT_EQ(native->config(), double_norm_model());
  const auto rows = [&native](const std::string& name) {
    for (const formats::TensorSpec& spec : native->tensors()) {
      if (spec.name != name) continue;
      const int64_t count = spec.shape.num_elements();
      std::vector<float> all(static_cast<size_t>(count)), result;
      native->read(name, 0, count, all.data());
      for (int64_t row = 0; row < spec.shape[0]; ++row)
        result.push_back(all[static_cast<size_t>(row * (count / spec.shape[0]))]);
      return result;
    }
    return std::vector<float>();
  };
  const auto same = [](size_t count, float value) { return std::vector<float>(count, value); };
  const std::string delta = "model.layers.0.attn.", latent = "model.layers.1.attn.";
  EXPECT_EQ(rows(latent + "q_proj.0.weight"), same(10, 123));
  EXPECT_EQ(rows(latent + "q_proj.1.weight"), same(10, 128));
  EXPECT_EQ(rows(latent + "q_second_norm.weight"), same(10, 124));
  // Pairs become halves.
  EXPECT_EQ(
      rows(latent + "q_proj.2.weight"),
      (std::vector<float>{200, 201, 202, 203, 205, 204, 206, 207, 208, 209, 210, 212, 211, 213}));
  EXPECT_EQ(rows(latent + "kv_proj.0.weight"), same(7, 125));
  EXPECT_EQ(rows(latent + "k_rope.weight"), (std::vector<float>{300, 302, 301, 303}));
  EXPECT_EQ(rows(latent + "kv_proj.1.weight"), same(7, 129));
  EXPECT_EQ(rows(latent + "kv_second_norm.weight"), same(7, 126));
  EXPECT_EQ(rows(latent + "kv_proj.2.weight"), same(16, 127));
  EXPECT_EQ(rows(latent + "o_proj.weight"), same(24, 122));
  EXPECT_EQ(rows("model.layers.1.attn_norm.weight"), same(24, 121));
  EXPECT_EQ(rows(delta + "q_proj.weight"), same(12, 101));
  EXPECT_EQ(rows(delta + "a_proj.weight"), same(4, 106));
  EXPECT_EQ(rows(delta + "v_conv1d.weight"), same(36, 113));
  EXPECT_EQ(rows("model.layers.1.mlp.gate_proj.weight"), same(20, 141));
  EXPECT_EQ(rows("model.layers.1.mlp_norm.weight"), same(24, 140));
}

TEST(MegatronDoubleNormTest, ExportsAreRefusedWithTheReason) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "in", transformer_engine_hybrid());
  std::ofstream(folder / "in/iter_0000007/config.json")
      << model_config_to_hf(double_norm_model(), DType::kF32);
  for (const char* form : {"hf", "megatron", "megatron --spec te"}) {
    const auto result = test::run_program("convert --from " + (folder / "in").string() + " --to " +
                                          (folder / "out").string() + " --format " + form);
    EXPECT_EQ(result.exit_code, 2) << form;
    EXPECT_THAT(result.err, HasSubstr("whose rank norms are applied twice, one after the other"))
        << form;
    EXPECT_FALSE(std::filesystem::exists(folder / "out")) << form;
  }
}

TEST(MegatronDoubleNormTest, AModelThatSaysOtherwiseAndMissingNormsAreNamed) {
  const TemporaryFolder folder;
  std::vector<MadeTensor> tensors = transformer_engine_hybrid();
  write_checkpoint(folder / "in", tensors);
  OpenOptions options;
  options.config = double_norm_model();
  options.config->attn->double_norms = false;
  try {
    open_weights(folder / "in", options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("attn.double_norms: expected true, as the checkpoint's "
                                        "tensors have it, got false"));
  }
  std::erase_if(tensors, [](const MadeTensor& tensor) {
    return tensor.name.ends_with("linear_q_up_proj.layer_norm_weight");
  });
  write_checkpoint(folder / "less", tensors);
  options.config = double_norm_model();
  EXPECT_THAT(
      open_weights(folder / "less", options)->differences().missing,
      ::testing::ElementsAre("decoder.layers.2.self_attention.linear_q_up_proj.layer_norm_weight"));
}

TEST(MegatronTargetTest, TransformerEngineHybridsAreRefusedWithTheReason) {
  const TemporaryFolder folder;
  const auto result =
      test::run_program("convert --from " + test::golden_path("tiny_hybrid").string() + " --to " +
                        (folder / "out").string() + " --format megatron --spec te");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("applies the norms of its ranks twice"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

// KDA as newer versions of Primus store it where its projection has 2176 to 2304 rows: 2192 rows
// are followed by 368 of padding.
TEST(MegatronPaddingTest, PaddedProjectionsAreCut) {
  const TemporaryFolder folder;
  ModelConfig config = uneven_model(ModelFamily::kKda, false);
  config.num_heads = 16;
  config.num_v_heads = 16;
  config.head_dim = 32;
  config.expand_v = 2;
  config.hidden_size = 4;
  write_model_folder(folder / "hf", config, DType::kF32,
                     [](int64_t i, int64_t row) { return static_cast<float>(i + row); });
  convert_model(folder / "hf", target(folder / "out", TargetFormat::kMegatron), silent_reporter());
  {
    const TorchFile plain(folder / (std::string("out/") + kFile));
    formats::TorchFileWriter writer(folder / "wide.pt");
    formats::PickleWriter pickle;
    std::vector<std::vector<float>> values;
    pickle.begin_dict();
    pickle.text("iteration");
    pickle.integer(0);
    pickle.text("model");
    pickle.begin_dict();
    const std::vector<PickleValue>& items = plain.root().find("model")->items();
    for (size_t i = 0; i < items.size(); i += 2) {
      const std::string& name = items[i].text();
      const formats::TorchTensor tensor = plain.tensor(items[i + 1], name);
      const int64_t count = tensor.shape.num_elements();
      values.emplace_back(static_cast<size_t>(count));
      plain.read(tensor, 0, count, values.back().data());
      Shape shape = tensor.shape;
      if (name.ends_with("in_proj.weight")) {
        ASSERT_EQ(shape, (Shape{2192, 4}));
        shape = {2560, 4};
        values.back().resize(2560 * 4, -1.0F);
      }
      pickle.text(name);
      writer.announce(DType::kF32, shape, pickle);
    }
    pickle.end_dict();
    pickle.end_dict();
    writer.write_tree(pickle.finish());
    for (const std::vector<float>& tensor : values) {
      writer.begin_tensor();
      writer.write(tensor.data(), static_cast<int64_t>(4 * tensor.size()));
    }
    writer.commit();
  }
  std::filesystem::rename(folder / "wide.pt", folder / (std::string("out/") + kFile));
  const auto source = open_weights(folder / "out");
  EXPECT_THAT(source->notes(), ::testing::ElementsAre(HasSubstr("in_proj: 2192 of 2560 rows")));
  convert_model(folder / "out", target(folder / "back", TargetFormat::kHuggingFace),
                silent_reporter());
  EXPECT_EQ(read_file(folder / "back/model.safetensors"),
            read_file(folder / "hf/model.safetensors"));
}

}  // namespace
}  // namespace deltatrain::convert
