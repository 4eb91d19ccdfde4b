// A recipe file to the plain structs of config/recipe.h, strictly:
// every key known, of its type, given once, and every value with its origin.
// What the keys mean: docs/recipes.md, made from the same table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace deltatrain {

struct ResolvedRecipe {
  Recipe recipe;

  // "optimizer.lr" -> "recipes/base/pretrain.yaml:12",
  // "--set" or "default", for every key that applies.
  std::map<std::string, std::string> origins;

  // Values that are allowed but hardly meant, "FILE:LINE: KEY: text".
  std::vector<std::string> warnings;

  // The recipe as YAML with every value written out and no base: reading it gives the same recipe.
  std::string to_yaml() const;

  // SHA-256 of the values that can change the trained weights; see digest_differences().
  std::string digest() const;
};

// Reads `path`, its chain of bases and the overrides "section.key=value" (later ones win), and
// checks the whole. `base:` is relative to the file that names it; ${VAR} is replaced in paths
// only. Throws ConfigError "FILE:LINE: KEY: expected ..., got ..." (for an override the place is
// "--set"), FileError for a file that can't be read.
ResolvedRecipe load_recipe(const std::filesystem::path& path,
                           const std::vector<std::string>& overrides);

// The same for text that has no file, such as the resolved
// recipe stored in a checkpoint; `base:` is refused.
ResolvedRecipe parse_recipe(std::string_view yaml, const std::string& where,
                            const std::vector<std::string>& overrides);

// The keys whose values differ between two recipes, among those
// that digest() covers, as "optimizer.lr: 0.0002, was 0.0003".
// Left out: log.*, checkpoint.* but init_from, validation, the tokenizer.
std::vector<std::string> digest_differences(const Recipe& now, const Recipe& before);

std::string recipe_to_yaml(const Recipe& recipe);

// One line of `recipe show`.
struct RecipeValue {
  std::string key;   // "model.attn.layers"
  std::string text;  // as in YAML
  std::string origin;
};
std::vector<RecipeValue> list_values(const ResolvedRecipe& resolved);

// One key of the table that the reader, --help and docs/recipes.md share.
struct RecipeKey {
  std::string key;   // "optimizer.lr"
  std::string type;  // "number", "whole number", "true or false", "one of a, b", "path", ...
  std::string default_text;  // "required", "null", "0.01", ...
  std::string description;
  bool changes_result = true;  // covered by digest()
};
std::vector<RecipeKey> recipe_keys();

std::string recipe_keys_text();      // for --help
std::string recipe_keys_markdown();  // for docs/recipes.md: a table per section

}  // namespace deltatrain
