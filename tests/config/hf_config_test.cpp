#include "config/hf_config.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "config/models.h"

namespace deltatrain {
namespace {

std::string refusal(const std::string& json) {
  try {
    model_config_from_hf(json, "config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(HfConfigTest, MissingKeysTakeTheDefaultsOfTheClass) {
  ModelConfig gdn = model_config_from_hf(R"({"model_type": "gated_deltanet"})", "c");
  EXPECT_EQ(gdn.num_hidden_layers, 21);
  EXPECT_EQ(gdn.num_heads, 6);
  EXPECT_EQ(gdn.num_v_heads, 6);
  EXPECT_EQ(gdn.head_dim, 256);
  EXPECT_EQ(gdn.expand_v, 2);
  EXPECT_EQ(gdn.hidden_size, 2048);
  EXPECT_EQ(gdn.intermediate_size, 5632);  // 256 * ceil(int(2048 * 4 * 2 / 3) / 256)
  EXPECT_EQ(gdn.vocab_size, 32000);
  EXPECT_EQ(gdn.norm_eps, 1e-6);
  EXPECT_FALSE(gdn.tie_word_embeddings);
  EXPECT_EQ(gdn.bos_token_id, 1);
  EXPECT_EQ(gdn.eos_token_id, 2);
  EXPECT_EQ(gdn.pad_token_id, std::nullopt);
  EXPECT_FALSE(gdn.attn.has_value());

  const ModelConfig kda =
      model_config_from_hf(R"({"architectures": ["KDAForCausalLM"], "eos_token_id": null})", "c");
  EXPECT_EQ(kda.family, ModelFamily::kKda);
  EXPECT_EQ(kda.num_hidden_layers, 24);
  EXPECT_EQ(kda.num_heads, 16);
  EXPECT_EQ(kda.head_dim, 128);
  EXPECT_EQ(kda.expand_v, 1);
  EXPECT_EQ(kda.eos_token_id, std::nullopt);
}

TEST(HfConfigTest, RankNormsOfAFolderThatDoesNotSayTakeTheLayersDefault) {
  const std::string attn =
      R"({"layers": [8, 0, 4, 0], "num_heads": 16, "q_lora_rank": 672, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64)";
  const std::string head = R"({"model_type": "gated_deltanet", "norm_eps": 1e-06, "attn": )";
  const ModelConfig silent = model_config_from_hf(head + attn + "}}", "c");
  EXPECT_EQ(silent.attn->norm_eps, 1e-5);
  EXPECT_EQ(silent.attn->rope_theta, 10000);
  EXPECT_EQ(silent.attn->layers, (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(model_config_from_hf(head + attn + R"(, "norm_eps": 1e-06, "type": "mla"}})", "c")
                .attn->norm_eps,
            1e-6);
}

TEST(HfConfigTest, EveryModelSurvivesTheRoundTrip) {
  ModelConfig variant = test::with_attention(test::kda_300m(), test::mla_300m());
  variant.lower_bound = -4.5;
  variant.safe_gate = true;
  variant.allow_neg_eigval = true;
  variant.attn->q_lora_rank.reset();
  variant.attn->norm_eps = 1e-5;
  variant.bos_token_id = 128000;
  variant.pad_token_id = 7;
  ModelConfig plain = test::gdn_1b();
  plain.use_gate = false;
  plain.tie_word_embeddings = false;
  plain.eos_token_id = 3;
  for (const ModelConfig& config : {variant, plain, test::gdn_300m(), test::kda_1b()}) {
    const std::string text = model_config_to_hf(config, DType::kBF16);
    EXPECT_EQ(model_config_from_hf(text, "c"), config) << text;
  }
}

TEST(HfConfigTest, ExportSaysWhatTransformersNeeds) {
  const std::string text =
      model_config_to_hf(test::with_attention(test::gdn_300m(), test::mla_300m()), DType::kF32);
  for (const char* part :
       {"\"GatedDeltaNetForCausalLM\"", "\"model_type\": \"gated_deltanet\"", "\"type\": \"mla\"",
        "\"norm_eps\": 1e-06", "\"torch_dtype\": \"float32\"", "\"use_cache\": true",
        "\"use_gate\": true", "\"attn_mode\": \"chunk\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(text.find("lower_bound"), std::string::npos);
  EXPECT_THROW(model_config_to_hf(test::gdn_300m(), DType::kI64), ConfigError);
}

TEST(HfConfigTest, RefusesWhatIsNotAConfig) {
  EXPECT_EQ(refusal("{"), "config.json: expected a JSON object, got broken JSON");
  EXPECT_EQ(refusal("[1]"), "config.json: expected a JSON object, got [1]");
  EXPECT_EQ(refusal(std::string(100000, '[')),
            "config.json: expected a JSON object, got broken JSON");
  EXPECT_EQ(
      refusal("{}"),
      "config.json: model_type: expected \"gated_deltanet\" (GatedDeltaNetForCausalLM) or \"kda\" "
      "(KDAForCausalLM), got nothing");
  EXPECT_EQ(
      refusal(R"({"model_type": "llama"})"),
      "config.json: model_type: expected \"gated_deltanet\" (GatedDeltaNetForCausalLM) or \"kda\" "
      "(KDAForCausalLM), got \"llama\"");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "architectures": ["GatedDeltaNetForCausalLM"]})"),
            "config.json: architectures: expected the class of model_type \"kda\", got "
            "[\"GatedDeltaNetForCausalLM\"]");
}

TEST(HfConfigTest, RefusesWrongTypesAndValues) {
  EXPECT_EQ(refusal(R"({"model_type": "kda", "hidden_size": "big"})"),
            "config.json: hidden_size: expected a whole number, got \"big\"");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "hidden_size": 1024.5})"),
            "config.json: hidden_size: expected a whole number, got 1024.5");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "num_heads": 18446744073709551615})"),
            "config.json: num_heads: expected a whole number, got 18446744073709551615");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "use_short_conv": 1})"),
            "config.json: use_short_conv: expected true or false, got 1");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "num_v_heads": 17})"),
            "config.json: num_v_heads: expected a multiple of num_heads (16), got 17");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "hidden_act": "gelu"})"),
            "config.json: hidden_act: expected \"swish\", got \"gelu\"");
}

TEST(HfConfigTest, RefusesKeysThatWouldMakeAnotherModel) {
  EXPECT_EQ(
      refusal(R"({"model_type": "kda", "attnres_block_size": 4})"),
      "config.json: attnres_block_size: expected null: this program has no such model, got 4");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "attn": {"layers": [0], "num_heads": 4}})"),
            "config.json: attn.kv_lora_rank: expected a whole number: of attention layers, only "
            "multi-head latent "
            "ones are supported, got nothing");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "attn": {"type": "nsa", "layers": [0]}})"),
            "config.json: attn.type: expected \"mla\", got \"nsa\"");
  EXPECT_EQ(
      refusal(R"({"model_type": "kda", "attn": {"kv_lora_rank": 4, "window_size": 128}})"),
      "config.json: attn.window_size: expected null: this program has no such model, got 128");
  EXPECT_EQ(refusal(R"({"model_type": "kda", "attn": {"kv_lora_rank": 4, "layers": [0, "x"]}})"),
            "config.json: attn.layers: expected a list of block numbers, got [0,\"x\"]");
  EXPECT_EQ(
      refusal(
          R"({"model_type": "gated_deltanet", "attnres_block_size": null, "fuse_norm": true, "zebra": 1})"),
      "");
}

}  // namespace
}  // namespace deltatrain
