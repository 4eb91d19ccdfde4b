// The recipes that come with the program.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "config/models.h"
#include "config/recipe_reader.h"

namespace deltatrain {
namespace {

namespace fs = std::filesystem;

// Tests run in the source folder.
std::vector<fs::path> recipe_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator("recipes")) {
    if (entry.path().extension() == ".yaml" && entry.path().parent_path().filename() != "base") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(RecipeFilesTest, AllParseAndPrintBackWithoutWarnings) {
  ASSERT_GE(recipe_files().size(), 15U);
  for (const fs::path& file : recipe_files()) {
    const ResolvedRecipe resolved = load_recipe(file, {});
    EXPECT_EQ(resolved.warnings, std::vector<std::string>{}) << file;
    const ResolvedRecipe again = parse_recipe(resolved.to_yaml(), "printed", {});
    EXPECT_EQ(again.recipe, resolved.recipe) << file << "\n" << resolved.to_yaml();
    EXPECT_EQ(again.to_yaml(), resolved.to_yaml());
    EXPECT_EQ(again.digest(), resolved.digest());
  }
}

TEST(RecipeFilesTest, FullSizeRecipesAreThePublishedModels) {
  const std::map<std::string, int64_t> parameters = {
      {"gdn/gdn_300m", 307'767'232},        {"kda/kda_300m", 303'549'280},
      {"hybrid/gdn_mla_300m", 309'280'624}, {"hybrid/kda_mla_300m", 306'117'160},
      {"gdn/gdn_1b", 1'203'441'152},        {"kda/kda_1b", 1'175'153'920},
      {"hybrid/kda_mla_1b", 1'190'062'784},
  };
  for (const auto& [name, count] : parameters) {
    const Recipe recipe = load_recipe("recipes/" + name + ".yaml", {}).recipe;
    EXPECT_EQ(count_parameters(recipe.model), count) << name;
    EXPECT_EQ(recipe.model.norm_eps, 1e-6) << name;
    if (recipe.model.attn) {
      EXPECT_EQ(recipe.model.attn->norm_eps, 1e-6) << name;
    }
    EXPECT_EQ(recipe.optimizer.lr, 2e-4) << name;
    EXPECT_EQ(recipe.optimizer.min_lr, 2e-5) << name;
    EXPECT_EQ(recipe.optimizer.adam_beta2, 0.95) << name;
    EXPECT_EQ(recipe.schedule.lr_warmup_iters, 200) << name;
    EXPECT_EQ(recipe.schedule.lr_decay_iters, recipe.train.train_iters) << name;
    EXPECT_EQ(recipe.schedule.lr_decay_style, DecayStyle::kCosine) << name;
    const bool large = name.ends_with("1b");
    EXPECT_EQ(recipe.train.train_iters, large ? 76294 : 4768) << name;
    EXPECT_EQ(recipe.train.global_batch_size, large ? 64 : 1024) << name;
    const bool is_long = name == "hybrid/kda_mla_1b";
    EXPECT_EQ(recipe.train.seq_length, is_long ? 8192 : 2048) << name;
    EXPECT_EQ(recipe.optimizer.weight_decay, is_long ? 0.1 : 0.01) << name;
  }
}

TEST(RecipeFilesTest, ModelsAreThoseOfTheTests) {
  const auto shapes = [](ModelConfig config) {
    config.max_position_embeddings = 0;
    config.bos_token_id.reset();
    config.eos_token_id.reset();
    return config;
  };
  const auto model = [&](const std::string& name) {
    return shapes(load_recipe("recipes/" + name, {}).recipe.model);
  };
  EXPECT_EQ(model("gdn/gdn_300m.yaml"), shapes(test::gdn_300m()));
  EXPECT_EQ(model("kda/kda_1b.yaml"), shapes(test::kda_1b()));
  EXPECT_EQ(model("hybrid/gdn_mla_300m.yaml"),
            shapes(test::with_attention(test::gdn_300m(), test::mla_300m())));
  EXPECT_EQ(model("hybrid/kda_mla_1b.yaml"),
            shapes(test::with_attention(test::kda_1b(), test::mla_1b())));
}

TEST(RecipeFilesTest, SmokeTwinsHaveTheStructureOfTheirOriginals) {
  const std::map<std::string, std::string> twins = {
      {"gdn", "gdn/gdn_300m"},
      {"kda", "kda/kda_300m"},
      {"gdn_mla", "hybrid/gdn_mla_300m"},
      {"kda_mla", "hybrid/kda_mla_300m"},
      {"gdn_1b", "gdn/gdn_1b"},
      {"kda_1b", "kda/kda_1b"},
      {"kda_mla_1b", "hybrid/kda_mla_1b"},
  };
  for (const auto& [name, original] : twins) {
    const Recipe twin = load_recipe("recipes/smoke/" + name + ".yaml", {}).recipe;
    const Recipe full = load_recipe("recipes/" + original + ".yaml", {}).recipe;
    EXPECT_EQ(twin.model.family, full.model.family) << name;
    EXPECT_EQ(twin.model.attn.has_value(), full.model.attn.has_value()) << name;
    EXPECT_EQ(twin.model.expand_v, full.model.expand_v) << name;
    EXPECT_EQ(twin.model.num_v_heads / twin.model.num_heads,
              full.model.num_v_heads / full.model.num_heads)
        << name;
    // Query, key and value widths in proportion to the stream.
    EXPECT_EQ(full.model.hidden_size / full.model.key_dim(),
              twin.model.hidden_size / twin.model.key_dim())
        << name;
    EXPECT_EQ(full.model.hidden_size / full.model.value_dim(),
              twin.model.hidden_size / twin.model.value_dim())
        << name;
    if (full.model.attn) {
      EXPECT_EQ(twin.model.attn->num_heads * twin.model.attn->v_head_dim, twin.model.hidden_size)
          << name;
      EXPECT_EQ(full.model.attn->num_heads * full.model.attn->v_head_dim, full.model.hidden_size)
          << name;
    }
    EXPECT_EQ(twin.optimizer.weight_decay, full.optimizer.weight_decay) << name;
    // At 50 GFLOP/s, which two cores reach, no more than three minutes.
    const double flops = count_flops_per_token(twin.model, twin.train.seq_length) *
                         static_cast<double>(twin.train.train_iters * twin.train.global_batch_size *
                                             twin.train.seq_length);
    EXPECT_LT(flops, 180 * 50e9) << name;
  }
}

}  // namespace
}  // namespace deltatrain
