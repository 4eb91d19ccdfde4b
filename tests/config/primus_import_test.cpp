// Experiment trees in miniature, written after the
// description of the reference's configuration system.

#include "config/primus_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "config/primus_pattern.h"
#include "config/primus_presets.h"
#include "config/recipe_reader.h"
#include "support/test_files.h"

namespace deltatrain {
namespace {

using ::testing::HasSubstr;

class PrimusImportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("IMPORT_TEST_NAME");
    for (const char* variable : {"PRIMUS_FUSED_CE", "PRIMUS_FLA_DATA", "PRIMUS_FLA_CACHE_DIR"})
      ::unsetenv(variable);
    write("primus/configs/modules/module_base.yaml", "trainable: false\nsink_level: null\n");
    write("primus/configs/modules/megatron/trainer_base.yaml",
          "extends:\n  - ../module_base.yaml\n"
          "trainable: true\nbf16: true\noptimizer: adam\nlr: 2.5e-4\nmin_lr: "
          "2.5e-5\nlr_decay_style: cosine\n"
          "lr_decay_iters: null\nlr_warmup_iters: 0\nweight_decay: 0.01\nclip_grad: "
          "1.0\nadam_beta1: 0.9\n"
          "adam_beta2: 0.95\nadam_eps: 1.0e-08\nseed: 1234\nseq_length: 4096\nsave: "
          "null\nsave_interval: 20000\n"
          "load: null\nfinetune: false\nnum_workers: 8\nfp8: null\nlog_interval: "
          "100\neod_mask_loss: false\n"
          "some_framework_key: 7\nspec: null\n");
    write("primus/configs/modules/megatron/pre_trainer.yaml",
          "extends:\n  - trainer_base.yaml\neval_iters: 0\neval_interval: 1000\ndataloader_type: "
          "cyclic\nsplit: null\n");
    write("primus/configs/models/megatron/language_model.yaml",
          "includes:\n  - elsewhere.yaml\n"
          "hidden_dropout: 0.1\nattention_dropout: 0.1\nadd_bias_linear: false\nnormalization: "
          "LayerNorm\n"
          "norm_epsilon: 1.0e-05\nswiglu: true\nposition_embedding_type: none\nrotary_base: 10000\n"
          "untie_embeddings_and_output_weights: true\nvocab_size: null\ntokenizer_model: null\n"
          "multi_latent_attention: false\n");
    write("primus/configs/models/megatron/mamba_base.yaml",
          "extends:\n  - language_model.yaml\nmodel_type: mamba\nhidden_dropout: "
          "0.0\nattention_dropout: 0.0\n"
          "untie_embeddings_and_output_weights: false\n");
    write(
        "primus/configs/models/megatron/gdn.yaml",
        "extends:\n  - mamba_base.yaml\nis_hybrid_model: true\nnum_layers: 24\nhidden_size: 1024\n"
        "ffn_hidden_size: 4096\nnum_attention_heads: 4\nhybrid_attention_ratio: "
        "0.0\nnormalization: RMSNorm\n"
        "norm_epsilon: 1.0e-6\ntokenizer_model: meta-llama/Llama-3.2-1B\nlinear_num_key_heads: 4\n"
        "linear_num_value_heads: 8\nlinear_key_head_dim: 64\nlinear_value_head_dim: 64\n");
    // As published: what it names under bases it does not inherit.
    write("primus/configs/models/megatron/kda_mla.yaml",
          "bases:\n  - mamba_base.yaml\nis_hybrid_model: true\nswiglu: true\nnum_layers: "
          "32\nhidden_size: 2048\n"
          "ffn_hidden_size: 8192\nhybrid_attention_ratio: 0.25\nmulti_latent_attention: true\n"
          "num_attention_heads: 32\nq_lora_rank: 1344\nkv_lora_rank: 128\nqk_head_dim: "
          "32\nqk_pos_emb_head_dim: 32\n"
          "v_head_dim: 64\nrotary_base: 500000\nposition_embedding_type: none\n"
          "tokenizer_model: meta-llama/Llama-3.2-1B\n");
  }

  std::string write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  std::string experiment(const std::string& model, const std::string& spec,
                         const std::string& more) {
    return write(
        "examples/e.yaml",
        "work_group: ${PRIMUS_TEAM:amd}\nuser_name: root\nexp_name: ${IMPORT_TEST_NAME:first}\n"
        "workspace: ./output\n\nmodules:\n  pre_trainer:\n    framework: megatron\n"
        "    config: pre_trainer.yaml\n    model: " +
            model +
            "\n    overrides:\n"
            "      spec: ['some.module', '" +
            spec +
            "']\n      train_iters: 4768\n      micro_batch_size: 128\n"
            "      global_batch_size: 1024\n      seq_length: 2048\n      lr: 2.0e-4\n      "
            "min_lr: 2.0e-5\n"
            "      lr_warmup_iters: 200\n      lr_decay_iters: 4768\n" +
            more);
  }

  ImportResult gdn(const std::string& more = "", const ImportOptions& options = {}) {
    return import_experiment(experiment("gdn.yaml", "gdn_hybrid_stack_spec_no_te", more), options);
  }

  ImportResult kda_mla(const std::string& more = "", const ImportOptions& options = {}) {
    return import_experiment(experiment("kda_mla.yaml", "kda_hybrid_stack_spec", more), options);
  }

  std::string refusal(const std::string& file) {
    try {
      import_experiment(file, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      std::string text = error.what();
      for (size_t at; (at = text.find(folder_.path().string() + "/")) != std::string::npos;) {
        text.erase(at, folder_.path().string().size() + 1);
      }
      return text;
    }
    return "";
  }

  static std::string line(const ImportResult& result, const std::string& key) {
    std::string text;
    for (const ImportRow& row : result.rows) {
      if (row.key == key)
        text +=
            std::string(import_status_name(row.status)) + " " + row.value + ": " + row.note + "\n";
    }
    return text;
  }

  static std::string origin(const ImportResult& result, const std::string& key) {
    for (const ImportRow& row : result.rows) {
      if (row.key == key) return row.origin.substr(row.origin.find_last_of('/') + 1);
    }
    return "";
  }

  static std::vector<std::string> keys(const ImportResult& result, ImportStatus status) {
    std::vector<std::string> found;
    for (const ImportRow& row : result.rows) {
      if (row.status == status) found.push_back(row.key);
    }
    return found;
  }

  test::TemporaryFolder folder_;
};

TEST_F(PrimusImportTest, PureModelGivesThePublishedRecipe) {
  const ImportResult result =
      gdn("      layernorm_epsilon: 1.0e-6\n      seed: 42\n      save: ./x\n"
          "      save_interval: 1024\n      dataloader_type: single\n");
  EXPECT_EQ(keys(result, ImportStatus::kRefused), std::vector<std::string>{});
  EXPECT_EQ(keys(result, ImportStatus::kLeaked), std::vector<std::string>{});
  const Recipe ours = load_recipe("recipes/gdn/gdn_300m.yaml", {}).recipe;
  EXPECT_EQ(result.recipe.model, ours.model);
  EXPECT_EQ(result.recipe.schedule, ours.schedule);
  EXPECT_EQ(result.recipe.train.train_iters, 4768);
  EXPECT_EQ(result.recipe.train.precision, Precision::kBf16);
  EXPECT_EQ(result.recipe.train.seed, 42U);
  EXPECT_EQ(result.recipe.optimizer.lr, 2e-4);
  EXPECT_EQ(result.recipe.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(result.recipe.optimizer.decay_groups, DecayGroups::kMegatronExact);
  EXPECT_EQ(result.recipe.checkpoint.save_interval, 1024);
  EXPECT_EQ(parse_recipe(recipe_to_yaml(result.recipe), "r", {}).recipe, result.recipe);
}

TEST_F(PrimusImportTest, EveryKeyIsReportedOnceWithItsOrigin) {
  const ImportResult result = gdn();
  EXPECT_EQ(line(result, "lr"), "mapped 2.0e-4: optimizer.lr\n");
  EXPECT_EQ(origin(result, "lr"), "e.yaml:17");
  EXPECT_EQ(line(result, "adam_beta2"), "mapped 0.95: optimizer.adam_beta2\n");
  EXPECT_EQ(origin(result, "adam_beta2"), "trainer_base.yaml:14");
  EXPECT_EQ(line(result, "num_layers"),
            "mapped 24: model.num_hidden_layers, two sublayers a block\n");
  EXPECT_EQ(line(result, "num_workers"), "inert 8: how the reference computes, not what\n");
  EXPECT_EQ(line(result, "exp_name"), "inert first: names the run and its folders\n");
  EXPECT_EQ(origin(result, "exp_name"), "e.yaml:3 (default of IMPORT_TEST_NAME)");
  EXPECT_EQ(line(result, "some_framework_key"),
            "inert 7: of the framework's preset, and of no model here\n");
  EXPECT_EQ(line(result, "hidden_dropout"), "mapped 0.0: no dropout in these models\n");
  EXPECT_EQ(origin(result, "hidden_dropout"), "mamba_base.yaml:4");
  const primus::Experiment read =
      primus::load_experiment((folder_ / "examples/e.yaml").string(), {}, {});
  for (const auto& [key, value] : read.settings) {
    EXPECT_THAT(line(result, key), ::testing::ContainsRegex("^[a-z]+ [^\n]*\n$")) << key;
  }
}

TEST_F(PrimusImportTest, EpsilonThatNobodyMeantIsCorrectedOrKept) {
  ImportResult result = gdn();
  EXPECT_EQ(line(result, "layernorm_epsilon"), "leaked 1e-5: corrected: model.norm_eps is 1e-06\n");
  EXPECT_EQ(origin(result, "layernorm_epsilon"), "Megatron's default");
  EXPECT_EQ(result.recipe.model.norm_eps, 1e-6);
  result = gdn("", {.keep_epsilon = true});
  EXPECT_EQ(result.recipe.model.norm_eps, 1e-5);
  EXPECT_EQ(line(result, "layernorm_epsilon"), "leaked 1e-5: model.norm_eps, kept as asked\n");
  result = gdn("      layernorm_epsilon: 1.0e-5\n");
  EXPECT_EQ(line(result, "norm_epsilon"),
            "refused 1.0e-6: layernorm_epsilon says otherwise; give one of them with --set\n");
  result = gdn("      layernorm_epsilon: 1.0e-5\n", {.overrides = {"norm_epsilon=1e-5"}});
  EXPECT_EQ(result.recipe.model.norm_eps, 1e-5);
  EXPECT_EQ(result.count(ImportStatus::kRefused), 0);
}

TEST_F(PrimusImportTest, BasesInheritNothingAndWhatLeaksInIsCorrected) {
  const ImportResult result = kda_mla();
  EXPECT_EQ(keys(result, ImportStatus::kRefused), std::vector<std::string>{});
  EXPECT_EQ(line(result, "bases"),
            "leaked [mamba_base.yaml]: inherits nothing in the reference: only extends does\n");
  EXPECT_EQ(line(result, "hidden_dropout"), "leaked 0.1: corrected: no dropout in these models\n");
  EXPECT_EQ(line(result, "attention_dropout"),
            "leaked 0.1: corrected: no dropout in these models\n");
  EXPECT_EQ(line(result, "add_bias_linear"),
            "leaked true: corrected: linear layers have no bias, but KDA's output gate\n");
  EXPECT_EQ(line(result, "normalization"),
            "leaked LayerNorm: corrected: these models have RMSNorm\n");
  EXPECT_EQ(line(result, "layernorm_epsilon"), "leaked 1e-5: corrected: model.norm_eps is 1e-06\n");
  EXPECT_EQ(line(result, "dataloader_type"), "mapped cyclic: data.order megatron-cyclic\n");
  EXPECT_EQ(line(result, "spec"),
            "leaked [some.module, kda_hybrid_stack_spec]: model.model_type kda; this spec norms "
            "latent attention's ranks twice; corrected: once (model.attn.double_norms: true in the "
            "recipe does as the reference)\n");
  EXPECT_FALSE(result.recipe.model.attn->double_norms);
  EXPECT_EQ(
      line(result, "linear_num_key_heads"),
      "leaked 16: model.num_heads; no file sets it, so Megatron's own number is kept: give --set "
      "linear_num_key_heads=N\n");
  const ModelConfig& m = result.recipe.model;
  EXPECT_EQ(m.family, ModelFamily::kKda);
  EXPECT_EQ(m.attn->layers, (std::vector<int64_t>{0, 4, 8, 12}));
  EXPECT_EQ(m.attn->q_lora_rank, 1344);
  EXPECT_EQ(m.attn->rope_theta, 500000);
  EXPECT_EQ(m.attn->norm_eps, 1e-6);
  EXPECT_EQ(m.num_heads, 16);
  EXPECT_EQ(m.num_v_heads, 32);
  EXPECT_EQ(m.head_dim, 128);
  // With the heads of the pure model it is the published hybrid.
  const ImportResult meant =
      kda_mla("", {.overrides = {"linear_num_key_heads=16", "linear_num_value_heads=16",
                                 "linear_key_head_dim=32", "linear_value_head_dim=64"}});
  EXPECT_EQ(count_parameters(meant.recipe.model), 1'190'062'784);
}

TEST_F(PrimusImportTest, WhatTheAuthorAskedForIsRefusedNotCorrected) {
  EXPECT_EQ(line(gdn("      hidden_dropout: 0.1\n"), "hidden_dropout"),
            "refused 0.1: no dropout in these models\n");
  EXPECT_EQ(line(gdn("      add_bias_linear: true\n"), "add_bias_linear"),
            "refused true: linear layers have no bias, but KDA's output gate\n");
  EXPECT_EQ(line(gdn("      tensor_model_parallel_size: 2\n"), "tensor_model_parallel_size"),
            "refused 2: data parallel only\n");
  EXPECT_EQ(line(gdn("      num_experts: 8\n"), "num_experts"),
            "refused 8: no mixture of experts\n");
  EXPECT_EQ(line(gdn("      lr_decay_style: WSD\n"), "lr_decay_style"),
            "refused WSD: expected constant, linear or cosine\n");
  EXPECT_EQ(line(gdn("      dataloader_type: external\n"), "dataloader_type"),
            "refused external: expected single or cyclic\n");
  EXPECT_EQ(line(gdn("      use_checkpoint_args: true\n"), "use_checkpoint_args"),
            "refused true: the recipe says the model and the training\n");
  EXPECT_EQ(line(gdn("", {.overrides = {"lr=fast"}}), "lr"), "refused fast: expected a number\n");
}

TEST_F(PrimusImportTest, MisspeltKeysAreRefusedWithTheNearestName) {
  EXPECT_EQ(line(gdn("      hiden_dropout: 0.0\n"), "hiden_dropout"),
            "refused 0.0: unknown key; did you mean hidden_dropout?\n");
  EXPECT_EQ(line(gdn("      zebra: 1\n"), "zebra"), "refused 1: unknown key\n");
}

TEST_F(PrimusImportTest, MambaMixersAreRefusedByName) {
  const std::string file = experiment("gdn.yaml", "mamba_hybrid_stack_spec_no_te", "");
  EXPECT_EQ(
      line(import_experiment(file, {}), "spec"),
      "refused [some.module, mamba_hybrid_stack_spec_no_te]: Mamba mixers are not supported\n");
}

// The reference's results for its published sizes: 3 of 12 blocks, 4 of 16, 7 of 28, 8 of 32.
TEST(PrimusPatternTest, RatiosAreAllottedAsTheReferenceDoes) {
  const auto blocks = [](int64_t num_sublayers, double ratio) {
    return *primus::find_attention_blocks(primus::allocate_sublayers(num_sublayers, ratio));
  };
  EXPECT_EQ(primus::allocate_sublayers(32, 0.25), "*-M-M-M-*-M-M-M-*-M-M-M-*-M-M-M-");
  EXPECT_EQ(blocks(24, 0.25), (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(blocks(56, 0.25).size(), 7U);
  EXPECT_EQ(blocks(64, 0.25).size(), 8U);
  EXPECT_EQ(primus::allocate_sublayers(16, 0.75), "*-*-*-*-*-M-*-M-");
  EXPECT_EQ(primus::allocate_sublayers(10, 0.4), "*-M-*-M-M-");
  EXPECT_EQ(primus::allocate_sublayers(4, 0.25), "M-M-");
  for (const char* symbols : {"", "M", "MM--", "M-E-", "M-|M-", "-M"}) {
    EXPECT_EQ(primus::find_attention_blocks(symbols), std::nullopt) << symbols;
  }
}

TEST_F(PrimusImportTest, PatternsPlaceAttention) {
  const std::string mla =
      "      multi_latent_attention: true\n      q_lora_rank: null\n      kv_lora_rank: 64\n"
      "      qk_head_dim: 32\n      qk_pos_emb_head_dim: 32\n      v_head_dim: 64\n";
  ImportResult result = gdn(mla + "      hybrid_override_pattern: '*-M-M-M-*-M-M-M-*-M-M-M-'\n");
  EXPECT_EQ(result.recipe.model.attn->layers, (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(result.recipe.model.attn->q_lora_rank, std::nullopt);
  EXPECT_EQ(line(result, "hybrid_attention_ratio"),
            "inert 0.0: the pattern says where attention is\n");
  EXPECT_EQ(result.count(ImportStatus::kRefused), 0);
  EXPECT_EQ(line(gdn(mla + "      hybrid_override_pattern: '*-M-'\n"), "hybrid_override_pattern"),
            "refused \"*-M-\": expected num_layers (24) symbols, got 4\n");
  EXPECT_EQ(
      line(gdn(mla + "      num_layers: 4\n      hybrid_override_pattern: 'MM--'\n"),
           "hybrid_override_pattern"),
      "refused MM--: expected a mixer (M) or attention (*) and a feed-forward layer (-) in turn\n");
  EXPECT_EQ(line(gdn("      hybrid_attention_ratio: 0.25\n"), "multi_latent_attention"),
            "refused false: expected true: of attention layers, only multi-head latent ones are "
            "supported\n");
  // Ratios as the reference allots them: 3 of 12 blocks; 6 of 8.
  EXPECT_EQ(gdn(mla + "      hybrid_attention_ratio: 0.25\n").recipe.model.attn->layers,
            (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(gdn(mla + "      hybrid_attention_ratio: 0.75\n      num_layers: 16\n")
                .recipe.model.attn->layers,
            (std::vector<int64_t>{0, 1, 2, 3, 4, 6}));
}

TEST_F(PrimusImportTest, MadeUpDataLeaksItsVocabulary) {
  const ImportResult result = gdn("      mock_data: true\n      train_data_path: somewhere\n");
  EXPECT_EQ(result.recipe.model.vocab_size, 128256);
  EXPECT_EQ(result.recipe.data.train, "");
  EXPECT_EQ(line(result, "mock_data"),
            "leaked true: the reference would embed 131200 made-up tokens; corrected: "
            "model.vocab_size is 128256\n");
  EXPECT_EQ(line(result, "train_data_path"), "inert somewhere: mock_data ignores it\n");
  EXPECT_EQ(line(gdn("      tokenizer_model: my/own\n"), "vocab_size"),
            "refused null: the size of tokenizer_model's vocabulary is not known: give --set "
            "vocab_size=N\n");
  EXPECT_EQ(gdn("      tokenizer_model: my/own\n      vocab_size: 1000\n").recipe.model.vocab_size,
            1024);
}

TEST_F(PrimusImportTest, DataWeightsAndFilesAreMapped) {
  const ImportResult result =
      gdn("      train_data_path: data/a\n      valid_data_path: [data/b]\n      eval_iters: 3\n"
          "      load: weights\n      finetune: true\n");
  EXPECT_EQ(result.recipe.data.train, "data/a");
  EXPECT_EQ(result.recipe.data.valid, "data/b");
  EXPECT_EQ(result.recipe.checkpoint.save_interval, 0);
  EXPECT_EQ(gdn("      train_data_path: 0.3 a 0.7 b\n").recipe.data.train, "0.3 a 0.7 b");
  ImportResult whole = gdn("      data_path: a\n      split: '99,1,0'\n");
  EXPECT_EQ(whole.recipe.data.split, "99,1,0");
  EXPECT_EQ(line(whole, "split"), "mapped \"99,1,0\": data.split\n");
  whole = gdn("      train_data_path: a\n      split: '99,1,0'\n");
  EXPECT_EQ(whole.recipe.data.split, std::nullopt);
  EXPECT_EQ(line(whole, "split"), "inert \"99,1,0\": files are named per split\n");
}

// What each option takes of the checkpoint stands in the recipe under the same name.
TEST_F(PrimusImportTest, ShardedOptimizersAreMapped) {
  EXPECT_FALSE(gdn("      seed: 42\n").recipe.parallel.use_distributed_optimizer);
  EXPECT_FALSE(
      gdn("      use_distributed_optimizer: false\n").recipe.parallel.use_distributed_optimizer);
  const ImportResult result = gdn("      use_distributed_optimizer: true\n");
  EXPECT_TRUE(result.recipe.parallel.use_distributed_optimizer);
  EXPECT_THAT(keys(result, ImportStatus::kMapped), ::testing::Contains("use_distributed_optimizer"));
}

TEST_F(PrimusImportTest, LoadKeepsItsMeaning) {
  ImportResult result =
      gdn("      load: start\n      no_load_optim: true\n      no_load_rng: true\n"
          "      ckpt_step: 12\n");
  EXPECT_EQ(result.count(ImportStatus::kRefused), 0);
  EXPECT_EQ(line(result, "load"), "mapped start: checkpoint.load\n");
  EXPECT_EQ(line(result, "no_load_optim"), "mapped true: checkpoint.no_load_optim\n");
  EXPECT_EQ(line(result, "ckpt_step"), "mapped 12: checkpoint.ckpt_step\n");
  CheckpointConfig wanted;
  wanted.load = "start";
  wanted.no_load_optim = wanted.no_load_rng = true;
  wanted.ckpt_step = 12;
  EXPECT_EQ(result.recipe.checkpoint, wanted);
  // The validated 300M recipe: weights that FLA would start from.
  result = gdn("      load: start\n      finetune: true\n      no_load_optim: true\n");
  wanted = {};
  wanted.load = "start";
  wanted.finetune = wanted.no_load_optim = true;
  EXPECT_EQ(result.recipe.checkpoint, wanted);
  EXPECT_EQ(gdn("      load: start\n").recipe.checkpoint.load, "start");

  result = gdn("      no_load_optim: true\n");
  EXPECT_EQ(line(result, "load"), "inert null: none\n");
  EXPECT_EQ(line(result, "no_load_optim"), "inert true: there is no load\n");
  EXPECT_EQ(result.recipe.checkpoint, CheckpointConfig{});
  result = gdn("      pretrained_checkpoint: weights\n");
  EXPECT_EQ(line(result, "pretrained_checkpoint"), "mapped weights: checkpoint.init_from\n");
  EXPECT_EQ(result.recipe.checkpoint.init_from, "weights");
}

TEST_F(PrimusImportTest, OrdersAndTheMaskOfEndsAreMapped) {
  EXPECT_EQ(gdn().recipe.data.order, DataOrder::kMegatronCyclic);  // of pre_trainer.yaml
  EXPECT_EQ(gdn("      dataloader_type: single\n").recipe.data.order, DataOrder::kMegatron);
  const std::string rows = "      use_fla_data: true\n      fla_cache_dir: cache\n";
  ImportResult result = gdn(rows);
  EXPECT_EQ(result.recipe.data.order, DataOrder::kTorchDistributed);
  EXPECT_EQ(result.recipe.data.train, "cache");
  EXPECT_EQ(line(result, "use_fla_data"), "mapped true: data.order torch-distributed\n");
  EXPECT_EQ(line(result, "dataloader_type"),
            "leaked cyclic: the reference would shuffle FLA's order once more; corrected: it is "
            "kept\n");
  EXPECT_EQ(line(gdn(rows + "      dataloader_type: single\n"), "dataloader_type"),
            "inert single: the order of the data set is kept\n");
  EXPECT_EQ(line(gdn("      use_fla_data: true\n"), "use_fla_data"),
            "inert true: without fla_cache_dir the reference ignores it\n");

  ::setenv("PRIMUS_FLA_DATA", "1", 1);
  ::setenv("PRIMUS_FLA_CACHE_DIR", "elsewhere", 1);
  result = gdn("      use_fla_data: false\n");
  EXPECT_EQ(result.recipe.data.train, "elsewhere");
  EXPECT_EQ(origin(result, "use_fla_data"), "environment PRIMUS_FLA_DATA");
  ::unsetenv("PRIMUS_FLA_DATA");
  ::unsetenv("PRIMUS_FLA_CACHE_DIR");

  result = gdn("      eod_mask_loss: true\n");
  EXPECT_TRUE(result.recipe.data.eod_mask_loss);
  EXPECT_EQ(line(result, "eod_mask_loss"), "mapped true: data.eod_mask_loss\n");
  result = gdn("      eod_mask_loss: true\n      fused_ce_mode: 1\n");
  EXPECT_EQ(line(result, "eod_mask_loss"),
            "leaked true: the reference's fused_ce_mode ignores the mask; corrected: "
            "data.eod_mask_loss is true\n");
  EXPECT_THAT(line(gdn("      eod_mask_loss: true\n      tokenizer_model: my/own\n"
                       "      vocab_size: 1000\n"),
                   "eod_mask_loss"),
              HasSubstr("refused true: tokenizer_model's end of document is not known"));
}

TEST_F(PrimusImportTest, EnvironmentGoesBeforeTheFileForKernelChoices) {
  EXPECT_EQ(line(gdn(), "fused_ce_mode"), "");
  ImportResult result = gdn("      fused_ce_mode: 0\n");
  EXPECT_EQ(line(result, "fused_ce_mode"),
            "inert 0: chooses a kernel of the reference; modes 1 and 2 ignore the loss mask\n");
  ::setenv("PRIMUS_FUSED_CE", "2", 1);
  result = gdn("      fused_ce_mode: 0\n");
  EXPECT_EQ(origin(result, "fused_ce_mode"), "environment PRIMUS_FUSED_CE");
  EXPECT_THAT(line(result, "fused_ce_mode"), HasSubstr("inert 2: "));
  ::unsetenv("PRIMUS_FUSED_CE");
}

TEST_F(PrimusImportTest, VariablesAreReplacedAndCoerced) {
  ::setenv("IMPORT_TEST_NAME", "second", 1);
  ImportResult result =
      gdn("      clip_grad: ${IMPORT_TEST_CLIP:2.5}\n      bf16: ${IMPORT_TEST_BF16:TRUE}\n");
  EXPECT_EQ(line(result, "exp_name"), "inert second: names the run and its folders\n");
  EXPECT_EQ(origin(result, "exp_name"), "e.yaml:3 (environment IMPORT_TEST_NAME)");
  EXPECT_EQ(result.recipe.optimizer.clip_grad, 2.5);
  EXPECT_EQ(result.recipe.train.precision, Precision::kBf16);
  // "null" stands for null only on its own.
  EXPECT_EQ(gdn("      train_data_path: ${IMPORT_TEST_PATH:null}\n").recipe.data.train, "");
  EXPECT_EQ(gdn("      train_data_path: ${IMPORT_TEST_PATH:}/a\n").recipe.data.train, "/a");
  EXPECT_EQ(
      refusal(experiment("gdn.yaml", "gdn_hybrid_stack_spec_no_te",
                         "      seed: ${IMPORT_TEST_UNSET}\n")),
      "examples/e.yaml:21: expected the environment variable IMPORT_TEST_UNSET to be set, got "
      "\"${IMPORT_TEST_UNSET}\"");
}

TEST_F(PrimusImportTest, LayersAreMergedInTheReferencesOrder) {
  // A key in both presets keeps the module's value;
  // later items of extends win, the file's own keys over them.
  write("primus/configs/models/megatron/a.yaml", "clip_grad: 7\nkv_channels: 1\nhidden_size: 1\n");
  write("primus/configs/models/megatron/b.yaml", "kv_channels: 2\nhidden_size: 2\n");
  write("primus/configs/models/megatron/c.yaml", "extends: [a.yaml, b.yaml]\nhidden_size: 3\n");
  const std::string file =
      write("examples/f.yaml",
            "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
            "    model: c.yaml\n    overrides:\n      seed: 1\n");
  const primus::Experiment read = primus::load_experiment(file, {}, {"seed=2", "lr=3e-4"});
  EXPECT_EQ(read.settings.at("clip_grad").node.text, "1.0");
  EXPECT_EQ(read.settings.at("kv_channels").node.text, "2");
  EXPECT_EQ(read.settings.at("hidden_size").node.text, "3");
  EXPECT_EQ(read.settings.at("seed").node.text, "2");
  EXPECT_EQ(read.settings.at("seed").origin, "--set");
  EXPECT_EQ(read.settings.at("trainable").node.text, "true");
}

TEST_F(PrimusImportTest, BrokenTreesAreRefusedByPlace) {
  EXPECT_EQ(refusal(write("examples/a.yaml", "work_group: amd\n")),
            "examples/a.yaml: modules: expected a mapping with one trainer, got nothing");
  EXPECT_EQ(refusal(write("examples/a.yaml", "modules:\n  evaluator: {}\n")),
            "examples/a.yaml: modules: expected a module whose name contains trainer, got none");
  EXPECT_EQ(refusal(write("examples/a.yaml", "modules:\n  a_trainer: {}\n  b_trainer: {}\n")),
            "examples/a.yaml:3: modules: expected one trainer, got a_trainer and b_trainer");
  EXPECT_EQ(refusal(write("examples/a.yaml", "modules:\n  trainer:\n    framework: torchtitan\n")),
            "examples/a.yaml: modules.trainer.framework: expected megatron, got \"torchtitan\"");
  EXPECT_EQ(refusal(write("examples/a.yaml", "modules:\n  trainer:\n    framework: megatron\n")),
            "examples/a.yaml:2: modules.trainer.config: expected a name, got nothing");
  EXPECT_THAT(
      refusal(experiment("nothing.yaml", "gdn_hybrid_stack_spec_no_te", "")),
      HasSubstr("primus/configs/models/megatron/nothing.yaml: cannot be opened: No such file"));
  write("primus/configs/models/megatron/loop.yaml", "extends: loop.yaml\n");
  EXPECT_THAT(refusal(experiment("loop.yaml", "gdn_hybrid_stack_spec_no_te", "")),
              HasSubstr("primus/configs/models/megatron/loop.yaml: extends: expected a chain that "
                        "ends, got a circle"));
  const test::TemporaryFolder bare;
  write_file_atomically(
      bare / "e.yaml",
      "modules:\n  trainer:\n    framework: megatron\n    config: a\n    model: b\n");
  EXPECT_THAT(
      refusal((bare / "e.yaml").string()),
      HasSubstr(
          "e.yaml: expected a parent folder with primus/configs, or --presets FOLDER, got none"));
}

TEST_F(PrimusImportTest, SmokeRunsAreAccepted) {
  const ImportResult result = gdn("", {.overrides = {"train_iters=50"}});
  EXPECT_EQ(result.count(ImportStatus::kRefused), 0);
  EXPECT_EQ(result.recipe.train.train_iters, 50);
  EXPECT_EQ(result.recipe.schedule.lr_decay_iters, 4768);
}

}  // namespace
}  // namespace deltatrain
