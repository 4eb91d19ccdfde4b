#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RecipeCommandTest, ShowPrintsEveryValueWithItsOrigin) {
  const ProgramResult result =
      run_program("recipe show recipes/hybrid/gdn_mla_300m.yaml --set optimizer.lr=3e-4");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, ContainsRegex("model.num_heads +4 +recipes/gdn/gdn_300m.yaml:6\n"));
  EXPECT_THAT(result.out, ContainsRegex("optimizer.lr +0.0003 +--set\n"));
  EXPECT_THAT(result.out, ContainsRegex("model.use_short_conv +true +default\n"));
}

TEST(RecipeCommandTest, ShowNamesTheEpsilonOfEveryNorm) {
  const ProgramResult result = run_program(
      "recipe show recipes/hybrid/gdn_mla_300m.yaml --set model.norm_eps=0.5 --set "
      "model.attn.norm_eps=0.25");
  EXPECT_THAT(result.out,
              HasSubstr("attn_norm       0.5   before each mixer\n"
                        "mlp_norm        0.5   before each feed-forward layer\n"
                        "attn.o_norm     0.5   after the delta rule, gated\n"
                        "attn.q_proj.1   0.25  rank of the latent attention's queries\n"
                        "attn.kv_proj.1  0.25  rank of the latent attention's keys and values\n"
                        "norm            0.5   before the output head\n"));
}

TEST(RecipeCommandTest, ShowPrintsJsonForMachines) {
  const ProgramResult result =
      run_program("recipe show recipes/hybrid/kda_mla_300m.yaml --json --set data.train=2024");
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part :
       {"\"model.attn.layers\": {\n      \"value\": [\n        0,\n        4,\n        8\n      ],",
        "\"value\": \"2024\"", "\"value\": 1e-06", "\"value\": null", "\"value\": \"cosine\"",
        "\"origin\": \"recipes/base/pretrain.yaml:4\""}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(RecipeCommandTest, CheckTakesManyFiles) {
  ProgramResult result =
      run_program("recipe check recipes/gdn/gdn_300m.yaml recipes/kda/kda_1b.yaml");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              StartsWith("recipes/gdn/gdn_300m.yaml: good, 307,767,232 parameters, digest "));
  result = run_program("recipe check recipes/gdn/gdn_300m.yaml /nonexistent.yaml");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out,
              HasSubstr("/nonexistent.yaml: cannot be opened: No such file or directory\n"));
  EXPECT_EQ(result.err, "deltatrain: recipe check: 1 of 2 files are no good recipe\n");
}

TEST(RecipeCommandTest, BadRecipesEndWithOneLineAndExitCodeTwo) {
  const TemporaryFolder folder;
  const std::string file = (folder / "r.yaml").string();
  write_file_atomically(file, "optimizer:\n  learning_rate: 1\n");
  for (const char* command : {"show", "check", "plan"}) {
    const ProgramResult result = run_program(std::string("recipe ") + command + " " + file);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err,
              "deltatrain: " + file +
                  ":2: optimizer.learning_rate: unknown key; did you mean optimizer.lr?\n");
  }
}

TEST(RecipeCommandTest, PlanCountsBeforeAnythingRuns) {
  ProgramResult result = run_program("recipe plan recipes/gdn/gdn_300m.yaml --device h200");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("parameters            307,767,232\n"));
  EXPECT_THAT(result.out, HasSubstr("FLOPs per token       1.867 G"));
  EXPECT_THAT(
      result.out,
      HasSubstr("tokens per step       2,097,152, in 16 micro-batches of 64 x 2048 on one rank\n"));
  EXPECT_THAT(result.out, HasSubstr("tokens                9.999 G\n"));
  // Masters, gradients and two moments in f32: 4, 4 and 8 bytes a parameter.
  result = run_program("recipe plan recipes/smoke/gdn.yaml --device cpu");
  EXPECT_THAT(result.out, HasSubstr("  parameters          5.53 MiB\n"));
  EXPECT_THAT(result.out, HasSubstr("  gradients           5.53 MiB\n"));
  EXPECT_THAT(result.out, HasSubstr("  optimizer state     11.0"));
  EXPECT_THAT(result.out, HasSubstr("  program             36.00 MiB\n"));
  EXPECT_THAT(result.out, HasSubstr("(cpu): fits\n"));
  result = run_program("recipe plan recipes/gdn/gdn_300m.yaml --device 24GiB --json");
  EXPECT_THAT(result.out, HasSubstr("\"device_memory_bytes\": 25769803776"));
  result = run_program("recipe plan recipes/gdn/gdn_300m.yaml --device gpu");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(
      result.err,
      "deltatrain: --device: expected cpu, h200, h100 or a size such as 24GiB, got \"gpu\"\n");
}

TEST(RecipeCommandTest, WarningsGoToStderr) {
  const ProgramResult result =
      run_program("recipe check recipes/gdn/gdn_300m.yaml --set train.train_iters=50");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err,
            "[recipe] warning: --set: train.train_iters: the run of 50 steps ends within the "
            "warm-up of 200\n");
}

TEST(RecipeCommandTest, HelpListsEveryKeyAndAnExample) {
  const ProgramResult result = run_program("recipe show --help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("Example: deltatrain recipe show "));
  EXPECT_THAT(
      result.out,
      HasSubstr("  optimizer.lr\n      a number > 0; required\n      Peak learning rate.\n"));
}

TEST(RecipeCommandTest, ImportReportsEveryKeyAndWritesARecipe) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder / name).parent_path());
    write_file_atomically(folder / name, text);
  };
  write("primus/configs/modules/megatron/pre_trainer.yaml",
        "bf16: true\neval_iters: 0\ndataloader_type: single\nsplit: null\nadam_beta2: 0.95\n");
  write(
      "primus/configs/models/megatron/gdn.yaml",
      "is_hybrid_model: true\nnum_layers: 24\nhidden_size: 1024\nffn_hidden_size: "
      "4096\nnormalization: RMSNorm\n"
      "norm_epsilon: 1.0e-6\nswiglu: true\nadd_bias_linear: false\nposition_embedding_type: none\n"
      "tokenizer_model: meta-llama/Llama-3.2-1B\nlinear_num_key_heads: 4\nlinear_num_value_heads: "
      "8\n"
      "linear_key_head_dim: 64\nlinear_value_head_dim: 64\nattention_dropout: 0.0\n");
  write("e.yaml",
        "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n    "
        "model: gdn.yaml\n"
        "    overrides:\n      spec: [m, gdn_hybrid_stack_spec_no_te]\n      train_iters: 100\n    "
        "  lr: 2.0e-4\n"
        "      lr_decay_style: cosine\n      micro_batch_size: 2\n      global_batch_size: 4\n     "
        " seq_length: 64\n"
        "      num_workers: 3\n");
  const std::string file = (folder / "e.yaml").string(), out = (folder / "out.yaml").string();

  ProgramResult result = run_program("recipe import " + file + " --out " + out + " --strict");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(
      result.err,
      "deltatrain: " + file +
          ": 2 of its settings leaked in, see the report; nothing written because of --strict\n");
  EXPECT_FALSE(std::filesystem::exists(out));

  result = run_program("recipe import " + file + " --out " + out + " --set hiden_dropout=0");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, StartsWith("refused  hiden_dropout  "));
  EXPECT_FALSE(std::filesystem::exists(out));

  result = run_program("recipe import " + file + " --out " + out);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nmapped  lr  "));
  EXPECT_THAT(result.out, HasSubstr("corrected: model.norm_eps is 1e-06\n"));
  EXPECT_THAT(result.out, HasSubstr("\ninert   num_workers  "));
  EXPECT_THAT(result.err, HasSubstr("out.yaml written, 307,767,232 parameters\n"));
  EXPECT_EQ(run_program("recipe check " + out).exit_code, 0);
  EXPECT_EQ(run_program("recipe import " + file + " --out " + out).exit_code,
            2);  // not written over
}

}  // namespace
}  // namespace deltatrain::test
