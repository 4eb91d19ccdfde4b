#include "config/recipe_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 16 lines: the model from 1, the optimizer from 10, train from 12.
std::string minimal() {
  return "model:\n"
         "  model_type: kda\n"
         "  vocab_size: 4096\n"
         "  hidden_size: 128\n"
         "  intermediate_size: 512\n"
         "  num_hidden_layers: 4\n"
         "  num_heads: 4\n"
         "  head_dim: 16\n"
         "  expand_v: 2\n"
         "optimizer:\n"
         "  lr: 2e-4\n"
         "train:\n"
         "  train_iters: 100\n"
         "  micro_batch_size: 2\n"
         "  global_batch_size: 8\n"
         "  seq_length: 256\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_recipe(yaml, "r.yaml", overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// A recipe with lines appended to its last section, train, which ends in line 16.
std::string with(const std::string& lines) { return refusal(minimal() + lines); }

std::string set(const std::string& text) { return refusal(minimal(), {text}); }

class RecipeFolderTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_file_atomically(folder_ / name, text);
    return (folder_ / name).string();
  }

  std::string load_refusal(const std::string& file,
                           const std::vector<std::string>& overrides = {}) {
    try {
      load_recipe(file, overrides);
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

  test::TemporaryFolder folder_;
};

TEST(RecipeReaderTest, ReadsValuesAndKeepsTheirOrigins) {
  const ResolvedRecipe resolved =
      parse_recipe(minimal(), "r.yaml", {"optimizer.weight_decay=1e-1"});
  const Recipe& r = resolved.recipe;
  EXPECT_EQ(r.model.family, ModelFamily::kKda);
  EXPECT_EQ(r.optimizer.lr, 2e-4);
  EXPECT_EQ(r.optimizer.weight_decay, 0.1);
  EXPECT_EQ(r.optimizer.adam_eps, 1e-8);
  EXPECT_EQ(resolved.origins.at("optimizer.lr"), "r.yaml:11");
  EXPECT_EQ(resolved.origins.at("optimizer.weight_decay"), "--set");
  EXPECT_EQ(resolved.origins.at("optimizer.adam_eps"), "default");
}

TEST(RecipeReaderTest, SomeDefaultsFollowOtherValues) {
  const ResolvedRecipe resolved = parse_recipe(minimal(), "r.yaml", {"train.train_iters=77"});
  EXPECT_EQ(resolved.recipe.model.num_v_heads, 4);
  EXPECT_EQ(resolved.recipe.schedule.lr_decay_iters, 77);
  EXPECT_EQ(resolved.recipe.model.max_position_embeddings, 256);
  EXPECT_EQ(resolved.origins.at("schedule.lr_decay_iters"), "default: train.train_iters");
}

TEST(RecipeReaderTest, NumbersMayBeWrittenInAnyUsualWay) {
  for (const char* text : {"2e-4", "2E-4", "0.0002", "2.0e-04", ".0002"}) {
    EXPECT_EQ(
        parse_recipe(minimal(), "r", {std::string("optimizer.lr=") + text}).recipe.optimizer.lr,
        2e-4)
        << text;
  }
}

TEST(RecipeReaderTest, RefusesUnknownKeysWithTheNearestName) {
  EXPECT_EQ(with("  num_head: 4\n"),
            "r.yaml:17: train.num_head: unknown key; did you mean model.num_heads?");
  EXPECT_EQ(refusal(replaced(minimal(), "num_heads", "num_head")),
            "r.yaml:7: model.num_head: unknown key; did you mean model.num_heads?");
  EXPECT_EQ(refusal(replaced(minimal(), "lr: 2e-4", "learning_rate: 2e-4")),
            "r.yaml:11: optimizer.learning_rate: unknown key; did you mean optimizer.lr?");
  EXPECT_EQ(with("  lr: 1\n"), "r.yaml:17: train.lr: unknown key; did you mean optimizer.lr?");
  EXPECT_EQ(with("optimiser:\n  lr: 1\n"),
            "r.yaml:17: optimiser: unknown key; did you mean optimizer?");
  EXPECT_EQ(with("bases: x.yaml\n"), "r.yaml:17: bases: unknown key; did you mean base?");
  EXPECT_EQ(with("extends: x.yaml\n"), "r.yaml:17: extends: unknown key; did you mean base?");
  EXPECT_EQ(with("lr: 1\n"), "r.yaml:17: lr: unknown key; did you mean optimizer.lr?");
  EXPECT_EQ(with("  hiden_dropout: 0.0\n"), "r.yaml:17: train.hiden_dropout: unknown key");
  EXPECT_EQ(refusal(replaced(minimal(), "num_heads: 4", "norm_epsilon: 1e-6")),
            "r.yaml:7: model.norm_epsilon: unknown key; did you mean model.norm_eps?");
  EXPECT_EQ(set("model.attn.type=mla"), "--set: model.attn.type: unknown key");
  EXPECT_EQ(set("model.atn=null"), "--set: model.atn: unknown key; did you mean model.attn?");
  EXPECT_EQ(set("optimizer.min_lrr=1"),
            "--set: optimizer.min_lrr: unknown key; did you mean optimizer.min_lr?");
}

TEST(RecipeReaderTest, RefusesKeysGivenTwice) {
  EXPECT_EQ(
      with("  train_iters: 7\n"),
      "r.yaml:17: train_iters: expected each key once, got a second one, the first in line 13");
  EXPECT_EQ(with("model: {}\n"),
            "r.yaml:17: model: expected each key once, got a second one, the first in line 1");
  EXPECT_EQ(with("  'seed': 1\n  \"seed\": 2\n"),
            "r.yaml:18: seed: expected each key once, got a second one, the first in line 17");
  EXPECT_EQ(set("model.attn={layers: [0], layers: [1]}"),
            "--set model.attn: layers: expected each key once, got a second one");
}

TEST(RecipeReaderTest, RefusesMistypedValues) {
  const auto lr = [](const std::string& text) {
    return refusal(replaced(minimal(), "lr: 2e-4", "lr: " + text));
  };
  const std::string head = "r.yaml:11: optimizer.lr: expected a number > 0, got ";
  EXPECT_EQ(lr("\"-3e-4\""), head + "\"-3e-4\"");
  EXPECT_EQ(lr("-3e-4"), head + "\"-3e-4\"");
  EXPECT_EQ(lr("'2e-4'"), head + "\"2e-4\"");
  EXPECT_EQ(lr("fast"), head + "\"fast\"");
  EXPECT_EQ(lr(".nan"), head + "\".nan\"");
  EXPECT_EQ(lr("nan"), head + "\"nan\"");
  EXPECT_EQ(lr(".inf"), head + "\".inf\"");
  EXPECT_EQ(lr("inf"), head + "\"inf\"");
  EXPECT_EQ(lr("1e999"), head + "\"1e999\"");
  EXPECT_EQ(lr("0"), head + "\"0\"");
  EXPECT_EQ(lr("2e-4 # fine"), "");
  EXPECT_EQ(lr("2e-4x"), head + "\"2e-4x\"");
  EXPECT_EQ(lr(""), head + "null");
  EXPECT_EQ(lr("null"), head + "null");
  EXPECT_EQ(lr("[2e-4]"), head + "[2e-4]");
  EXPECT_EQ(lr("{a: 1}"), head + "{a: 1}");

  const auto iters = [](const std::string& text) {
    return refusal(replaced(minimal(), "train_iters: 100", "train_iters: " + text));
  };
  for (const char* text :
       {"0", "-5", "1e2", "100.0", "0x64", "010", "1_000", "99999999999999999999", "true"}) {
    EXPECT_EQ(iters(text),
              std::string("r.yaml:13: train.train_iters: expected a whole number >= 1, got \"") +
                  text + "\"");
  }
  for (const char* text : {"yes", "True", "1", "on"}) {
    EXPECT_EQ(
        set(std::string("model.use_short_conv=") + text),
        std::string("--set: model.use_short_conv: expected true or false, got \"") + text + "\"");
  }
  EXPECT_EQ(set("model.use_short_conv='true'"),
            "--set: model.use_short_conv: expected true or false, got \"true\"");
  EXPECT_EQ(
      set("schedule.lr_decay_style=cosin"),
      "--set: schedule.lr_decay_style: expected one of constant, linear, cosine, got \"cosin\"");
  EXPECT_EQ(refusal("model: 7\n"),
            "r.yaml:1: model: expected a mapping of keys to values, got \"7\"");
  EXPECT_EQ(refusal("log:\n" + minimal()),
            "r.yaml:1: log: expected a mapping of keys to values, got null");
  EXPECT_EQ(with("data:\n  train: 7\n"), "r.yaml:18: data.train: expected a path, got \"7\"");
  EXPECT_EQ(with("data:\n  train: [a]\n"), "r.yaml:18: data.train: expected a path, got [a]");
}

TEST(RecipeReaderTest, RefusesMissingValues) {
  EXPECT_EQ(refusal(replaced(minimal(), "  vocab_size: 4096\n", "")),
            "r.yaml: model.vocab_size: expected a whole number from 2 to 2147483647, got nothing");
  EXPECT_EQ(refusal(""), "r.yaml: expected sections with keys and values, got nothing");
  EXPECT_EQ(refusal("# only this\n"),
            "r.yaml: expected sections with keys and values, got nothing");
  EXPECT_EQ(refusal("[1, 2]"), "r.yaml: expected sections with keys and values, got [1, 2]");
  EXPECT_EQ(refusal("just text"), "r.yaml: expected sections with keys and values, got just text");
  EXPECT_EQ(set("model.attn={layers: [0]}"),
            "r.yaml: model.attn.num_heads: expected a whole number from 1 to 1048576, got nothing");
}

TEST(RecipeReaderTest, RefusesContradictions) {
  EXPECT_EQ(set("optimizer.min_lr=1e-3"),
            "--set: optimizer.min_lr: expected at most optimizer.lr (0.0002), got \"1e-3\"");
  EXPECT_EQ(set("train.micro_batch_size=3"),
            "r.yaml:15: train.global_batch_size: expected a multiple of train.micro_batch_size "
            "(3), got \"8\"");
  EXPECT_EQ(set("schedule.lr_warmup_iters=100"),
            "--set: schedule.lr_warmup_iters: expected less than schedule.lr_decay_iters (100), "
            "got \"100\"");
  EXPECT_EQ(set("train.train_iters=4611686018427387904"),
            "--set: train.train_iters: expected at most 562949953421312 steps of this size, got "
            "\"4611686018427387904\"");
  EXPECT_EQ(set("model.num_v_heads=6"),
            "--set: model.num_v_heads: expected a multiple of num_heads (4), got \"6\"");
  EXPECT_EQ(
      set("model.expand_v=1.01"),
      "--set: model.expand_v: expected head_dim (16) * expand_v a whole number >= 1, got \"1.01\"");
  EXPECT_EQ(set("model.use_gate=false"),
            "--set: model.use_gate: expected true for model_type kda, whose output gate is fixed, "
            "got \"false\"");
  EXPECT_EQ(set("data.valid=x"),
            "r.yaml: train.eval_iters: expected at least 1 because data.valid is given, got 0");
  EXPECT_EQ(set("train.fp32_residual_connection=true"),
            "--set: train.fp32_residual_connection: expected false because train.precision is f32 "
            "already, got "
            "\"true\"");
  EXPECT_EQ(set("model.model_type=llama"),
            "--set: model.model_type: expected one of gated_deltanet, kda, got \"llama\"");
}

TEST(RecipeReaderTest, AcceptsEveryVariantOfTheModels) {
  for (const char* text : {"model.allow_neg_eigval=true", "model.lower_bound=-5",
                           "model.tie_word_embeddings=false"}) {
    EXPECT_EQ(set(text), "") << text;
  }
  EXPECT_EQ(refusal(minimal(), {"model.lower_bound=-5", "model.safe_gate=true"}), "");
  EXPECT_EQ(refusal(minimal(), {"model.model_type=gated_deltanet", "model.use_gate=false"}), "");
  const ResolvedRecipe hybrid = parse_recipe(
      minimal(), "r",
      {"model.attn={layers: [0, 2], num_heads: 4, kv_lora_rank: 8, "
       "qk_nope_head_dim: 8, qk_rope_head_dim: 8, v_head_dim: 16, q_lora_rank: null}"});
  EXPECT_EQ(hybrid.recipe.model.attn->q_lora_rank, std::nullopt);
  EXPECT_THAT(hybrid.recipe.model.attn->layers, ElementsAre(0, 2));
}

TEST(RecipeReaderTest, WarnsOfRunsThatAreHardlyMeant) {
  EXPECT_THAT(
      parse_recipe(minimal(), "r.yaml", {"schedule.lr_decay_iters=1000"}).warnings,
      ElementsAre(
          "r.yaml:13: train.train_iters: the run of 100 steps covers less than a quarter of the "
          "learning rate's 1000"));
  EXPECT_THAT(
      parse_recipe(minimal(), "r.yaml",
                   {"schedule.lr_decay_iters=1000", "schedule.lr_warmup_iters=200"})
          .warnings,
      ElementsAre(
          "r.yaml:13: train.train_iters: the run of 100 steps ends within the warm-up of 200"));
  EXPECT_THAT(parse_recipe(minimal(), "r.yaml", {}).warnings, ElementsAre());
}

TEST(RecipeReaderTest, OverridesReplaceOneAnotherInOrder) {
  EXPECT_EQ(parse_recipe(minimal(), "r", {"train.seed=1", "train.seed=2"}).recipe.train.seed, 2U);
  EXPECT_EQ(set("train.seed"), "--set: expected SECTION.KEY=VALUE, got \"train.seed\"");
  EXPECT_EQ(set("lr=1"),
            "--set: expected SECTION.KEY=VALUE, got \"lr=1\"; did you mean optimizer.lr?");
  EXPECT_EQ(set("=1"), "--set: expected SECTION.KEY=VALUE, got \"=1\"");
  EXPECT_EQ(set("train.seed=[1"),
            "--set train.seed: expected a name as key, got a list or an open bracket");
}

TEST(RecipeReaderTest, TextOfOverridesIsTakenAsItStands) {
  const Recipe r = parse_recipe(minimal(), "r", {"data.train=a: b #c", "data.tokenizer=7"}).recipe;
  EXPECT_EQ(r.data.train, "a: b #c");
  EXPECT_EQ(r.data.tokenizer, "7");
  EXPECT_EQ(parse_recipe(minimal(), "r", {"data.valid=x", "data.valid=null"}).recipe.data.valid,
            std::nullopt);
}

TEST(RecipeReaderTest, VariablesStandInPathsOnly) {
  ::setenv("DELTATRAIN_TEST_DIR", "/data", 1);
  ::setenv("DELTATRAIN_TEST_NESTED", "${HOME}", 1);
  ::unsetenv("DELTATRAIN_TEST_UNSET");
  EXPECT_EQ(
      parse_recipe(minimal() + "data:\n  train: ${DELTATRAIN_TEST_DIR}/a-${DELTATRAIN_TEST_DIR}\n",
                   "r", {})
          .recipe.data.train,
      "/data/a-/data");
  EXPECT_EQ(with("data:\n  train: ${DELTATRAIN_TEST_UNSET}/a\n"),
            "r.yaml:18: data.train: expected the environment variable DELTATRAIN_TEST_UNSET to be "
            "set, got "
            "\"${DELTATRAIN_TEST_UNSET}/a\"");
  EXPECT_EQ(with("data:\n  train: ${A:b}\n"),
            "r.yaml:18: data.train: expected ${NAME} with the name of an environment variable, got "
            "\"${A:b}\"");
  EXPECT_EQ(with("data:\n  train: a${A\n"),
            "r.yaml:18: data.train: expected ${NAME} with the name of an environment variable, got "
            "\"a${A\"");
  EXPECT_EQ(with("data:\n  train: ${DELTATRAIN_TEST_NESTED}\n"),
            "r.yaml:18: data.train: expected a value of DELTATRAIN_TEST_NESTED without ${, got "
            "\"${HOME}\"");
  EXPECT_EQ(with("  seed: ${DELTATRAIN_TEST_DIR}\n"),
            "r.yaml:17: train.seed: expected a whole number >= 0 (${...} is for paths only), got "
            "\"${DELTATRAIN_TEST_DIR}\"");
}

TEST(RecipeReaderTest, RefusesYamlThatHidesThings) {
  EXPECT_EQ(with("  seed: &a 1\n"),
            "r.yaml:17: expected values written out, got an anchor (&name)");
  EXPECT_EQ(with("data: &d\n  train: x\nlog: *d\n"),
            "r.yaml:17: expected values written out, got an anchor (&name)");
  EXPECT_EQ(with("  seed: *a\n"), "r.yaml:17: not YAML: the referenced anchor is not defined");
  EXPECT_EQ(with("  seed: !!int 1\n"),
            "r.yaml:17: expected no tags, got \"tag:yaml.org,2002:int\"");
  EXPECT_EQ(with("  <<: {seed: 1}\n"), "r.yaml:17: train.<<: unknown key");
  EXPECT_EQ(with("---\nlog: {}\n"), "r.yaml:18: expected one document, got a second one (---)");
  EXPECT_EQ(with("  seed: [1\n"), "r.yaml:18: not YAML: end of sequence flow not found");
  EXPECT_EQ(with("  null: 1\n"), "r.yaml:17: expected a name as key, got null");
  EXPECT_EQ(with("  ? [a]\n  : 1\n"),
            "r.yaml:17: expected a name as key, got a list or an open bracket");
  EXPECT_EQ(with("  seed: \xff\xfe\n"), "r.yaml:17: expected UTF-8 text, got byte 0xff");
  EXPECT_EQ(with("# \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n"), "");
  for (const char* bad :
       {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(with(std::string("# ") + bad + "\n"),
                ::testing::StartsWith("r.yaml:17: expected UTF-8 text"))
        << bad;
  }
  EXPECT_EQ(with(std::string("  seed: \0\n", 10)), "r.yaml:17: expected UTF-8 text, got byte 0x00");
}

TEST(RecipeReaderTest, MessagesAreOneShortLineWhateverTheText) {
  EXPECT_EQ(refusal("\"a\\nb\": 1\n"), "r.yaml:1: expected a name as key, got \"a\\x0ab\"");
  const std::string message = refusal(std::string(200, 'k') + ": 1\n");
  EXPECT_EQ(message, "r.yaml:1: expected a name as key, got \"" + std::string(57, 'k') + "...\"");
  EXPECT_EQ(
      set("train.seed=" + std::string(2000, '7')),
      "--set: train.seed: expected a whole number >= 0, got \"" + std::string(57, '7') + "...\"");
  EXPECT_EQ(set("a\nb"), "--set: expected SECTION.KEY=VALUE, got \"a\\x0ab\"");
  EXPECT_EQ(set("a.b\nc=1"), "--set: expected SECTION.KEY=VALUE, got \"a.b\\x0ac=1\"");
}

TEST(RecipeReaderTest, HostileTextIsRefusedQuickly) {
  const std::string deep = ": expected at most 16 levels of nesting, got more";
  EXPECT_EQ(refusal("a: " + std::string(500'000, '[') + std::string(500'000, ']')),
            "r.yaml:1" + deep);
  EXPECT_EQ(refusal("a: " + std::string(1'000'000, '[')),
            "r.yaml:1: expected a name as key, got a list or an open bracket");
  EXPECT_EQ(refusal("a: " + std::string(1'000'000, '{')),
            "r.yaml:1: expected a name as key, got a mapping or an open bracket");
  std::string dashes, questions;
  for (int i = 0; i < 300'000; ++i) dashes += "- ", questions += "? ";
  EXPECT_EQ(refusal(dashes), "r.yaml:1" + deep);
  EXPECT_NE(refusal(questions), "");
  EXPECT_EQ(refusal(std::string(1'100'000, 'a')),
            "r.yaml: expected at most 1048576 bytes, got 1100000");
  std::string keys;
  for (int i = 0; i < 100'000; ++i) keys.append("k").append(std::to_string(i)).append(": 1\n");
  EXPECT_EQ(refusal(keys), "r.yaml:1: k0: unknown key");
  EXPECT_EQ(set("train.seed=" + std::string(5000, '[') + std::string(5000, ']')),
            "--set train.seed" + deep);
}

TEST_F(RecipeFolderTest, BasesAreRelativeToTheFileAndReplacedKeyByKey) {
  write("base/all.yaml", minimal());
  write("base/more.yaml", "base: all.yaml\noptimizer:\n  weight_decay: 0.5\n  clip_grad: 2\n");
  const std::string leaf =
      write("run/leaf.yaml", "base: ../base/more.yaml\noptimizer:\n  clip_grad: 3\n");
  const ResolvedRecipe resolved = load_recipe(leaf, {});
  EXPECT_EQ(resolved.recipe.optimizer.weight_decay, 0.5);
  EXPECT_EQ(resolved.recipe.optimizer.clip_grad, 3);
  EXPECT_EQ(resolved.recipe.train.seq_length, 256);
  EXPECT_EQ(resolved.origins.at("optimizer.clip_grad"), leaf + ":3");
  EXPECT_EQ(resolved.origins.at("optimizer.weight_decay"),
            (folder_ / "base/more.yaml").string() + ":3");
}

TEST_F(RecipeFolderTest, AttentionIsMergedKeyByKeyAndRemovedByNull) {
  write("a.yaml", minimal() + "");
  write("b.yaml",
        "base: a.yaml\nmodel:\n  attn: {layers: [0], num_heads: 4, kv_lora_rank: 8, "
        "qk_nope_head_dim: 8, "
        "qk_rope_head_dim: 8, v_head_dim: 16}\n");
  const std::string c = write("c.yaml", "base: b.yaml\nmodel:\n  attn:\n    num_heads: 2\n");
  const ResolvedRecipe merged = load_recipe(c, {});
  EXPECT_EQ(merged.recipe.model.attn->num_heads, 2);
  EXPECT_EQ(merged.recipe.model.attn->v_head_dim, 16);
  EXPECT_EQ(merged.origins.at("model.attn.num_heads"), c + ":4");
  EXPECT_FALSE(load_recipe(c, {"model.attn=null"}).recipe.model.attn.has_value());
  EXPECT_EQ(load_recipe(c, {"model.attn=null"}).origins.count("model.attn.layers"), 0U);
  EXPECT_EQ(load_refusal(c, {"model.attn={}"}),
            "--set: model.attn: expected null or a mapping of keys to values, got {}");
  EXPECT_EQ(load_refusal(c, {"model.attn.layers=[0, 9]"}),
            "--set: model.attn.layers: expected a whole number from 0 to 3, got [0, 9]");
}

TEST_F(RecipeFolderTest, RefusesChainsThatDoNotEnd) {
  const std::string a = write("a.yaml", "base: b.yaml\n");
  write("b.yaml", "# second\nbase: ./sub/../c.yaml\n");
  write("c.yaml", "base: a.yaml\n");
  EXPECT_EQ(load_refusal(a),
            "c.yaml:1: base: expected a chain that ends, got a.yaml -> b.yaml -> c.yaml -> a.yaml");
  const std::string self = write("self.yaml", "base: self.yaml\n");
  EXPECT_EQ(load_refusal(self),
            "self.yaml:1: base: expected a chain that ends, got self.yaml -> self.yaml");
}

TEST_F(RecipeFolderTest, RefusesBasesThatAreNoRecipe) {
  const std::string a = write("a.yaml", "log:\n  log_interval: 1\nbase: none.yaml\n");
  EXPECT_EQ(load_refusal(a),
            "a.yaml:3: base: none.yaml: cannot be opened: No such file or directory (a.yaml -> "
            "none.yaml)");
  EXPECT_EQ(load_refusal(write("b.yaml", "base: [a.yaml, c.yaml]\n")),
            "b.yaml:1: base: expected the path of one recipe, got [a.yaml, c.yaml]");
  EXPECT_EQ(load_refusal(write("c.yaml", "base: ${HOME}/x.yaml\n")),
            "c.yaml:1: base: expected a path without variables, got \"${HOME}/x.yaml\"");
  write("sub/e.yaml", "");
  EXPECT_EQ(load_refusal(write("d.yaml", "base: sub\n")),
            "d.yaml:1: base: sub: expected a regular file, got a folder (d.yaml -> sub)");
  EXPECT_EQ(load_refusal((folder_ / "nowhere.yaml").string()),
            "nowhere.yaml: cannot be opened: No such file or directory");
  EXPECT_EQ(refusal("base: a.yaml\n"), "r.yaml:1: base: expected a resolved recipe, got a.yaml");
}

TEST_F(RecipeFolderTest, AHugeFileIsNotRead) {
  const std::string file = write("huge.yaml", "");
  std::filesystem::resize_file(file, uint64_t{1} << 30);
  EXPECT_EQ(load_refusal(file), "huge.yaml: expected at most 1048576 bytes, got 1073741824");
}

TEST(RecipePrinterTest, PrintedTextIsReadBackAsTheSameRecipe) {
  const ResolvedRecipe resolved = parse_recipe(
      minimal(), "r",
      {"optimizer.lr=0.1", "optimizer.min_lr=1e-17", "optimizer.adam_eps=3.3333333333333335e-09",
       "data.train=a \"b\" \\ #c: \t", "data.tokenizer=", "data.valid=2024", "train.eval_iters=1",
       "checkpoint.init_from=-x", "model.lower_bound=-5", "train.seed=4611686018427387904",
       "model.eos_token_id=0", "schedule.lr_decay_style=constant"});
  const std::string text = resolved.to_yaml();
  const ResolvedRecipe again = parse_recipe(text, "printed", {});
  EXPECT_EQ(again.recipe, resolved.recipe) << text;
  EXPECT_EQ(again.to_yaml(), text);
  EXPECT_THAT(text, HasSubstr("  attn: null\n"));
  EXPECT_THAT(text, HasSubstr("  valid: \"2024\"\n"));
  EXPECT_THAT(text, HasSubstr("  init_from: \"-x\"\n"));
}

TEST(RecipePrinterTest, DigestCoversWhatCanChangeTheWeights) {
  const ResolvedRecipe plain = parse_recipe(minimal(), "r", {});
  EXPECT_EQ(plain.digest().size(), 64U);
  for (const char* text : {"log.log_interval=7", "checkpoint.save_interval=7", "checkpoint.hf=true",
                           "data.tokenizer=x", "train.eval_interval=3"}) {
    const ResolvedRecipe other = parse_recipe(minimal(), "r", {text});
    EXPECT_EQ(other.digest(), plain.digest()) << text;
    EXPECT_THAT(digest_differences(other.recipe, plain.recipe), ElementsAre()) << text;
  }
  for (const char* text :
       {"train.seed=7", "optimizer.lr=3e-4", "model.norm_eps=1e-5", "train.precision=bf16",
        "train.micro_batch_size=1", "data.order=sequential"}) {
    EXPECT_NE(parse_recipe(minimal(), "r", {text}).digest(), plain.digest()) << text;
  }
  EXPECT_THAT(
      digest_differences(parse_recipe(minimal(), "r", {"optimizer.lr=3e-4"}).recipe, plain.recipe),
      ElementsAre("optimizer.lr: 0.0003, was 0.0002"));
}

TEST(RecipePrinterTest, ListsTheValuesThatApply) {
  std::set<std::string> keys;
  for (const RecipeValue& value : list_values(parse_recipe(minimal(), "r", {})))
    keys.insert(value.key);
  EXPECT_EQ(keys.count("model.lower_bound"), 1U);
  EXPECT_EQ(keys.count("model.use_gate"), 0U);
  EXPECT_EQ(keys.count("model.attn.layers"), 0U);
  EXPECT_EQ(keys.count("optimizer.lr"), 1U);
}

TEST(RecipePrinterTest, EveryKeyIsDescribed) {
  for (const RecipeKey& key : recipe_keys()) {
    EXPECT_TRUE(key.description.ends_with(".")) << key.key;
    EXPECT_FALSE(key.type.empty());
    EXPECT_FALSE(key.default_text.empty());
  }
}

}  // namespace
}  // namespace deltatrain
