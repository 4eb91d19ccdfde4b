// The table of recipe keys: name, type, default, meaning, and how to read it into and print it from
// a Recipe. Reader, printer, --help and docs/recipes.md all come from it; a new key is a field in
// recipe.h and a row here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"
#include "config/yaml_tree.h"

namespace deltatrain {

struct RecipeField {
  std::string key;   // "optimizer.lr", "model.attn.layers"
  std::string type;  // "a number > 0": what an error says was expected
  std::string description;
  bool required = false;
  bool is_text = false;        // a string or path: overrides are taken as they stand
  bool changes_result = true;  // can change the trained weights
  std::string default_from;    // key whose value it takes when absent, or ""

  // Puts the value into the recipe; false when it isn't of the type.
  // The node is never null unless that is a value of the type.
  // Throws ConfigError, without a place, where more is to be said than the type.
  std::function<bool(const YamlNode&, Recipe&)> read;
  std::function<std::string(const Recipe&)> print;  // as YAML
  std::function<bool(const Recipe&)> applies;       // whether the recipe has this value at all
};

// In the order of printing: by section, model first.
const std::vector<RecipeField>& recipe_fields();

const RecipeField* find_field(std::string_view key);

// The sections in order.
const std::vector<std::string>& recipe_sections();

}  // namespace deltatrain
