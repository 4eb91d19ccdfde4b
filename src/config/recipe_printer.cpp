// Recipes as text: YAML, the digest, and the table of keys.

#include <fmt/format.h>

#include "base/hash.h"
#include "config/recipe_reader.h"
#include "config/recipe_schema.h"

namespace deltatrain {

namespace {

std::string default_text(const RecipeField& field) {
  if (field.required) return "required";
  if (!field.default_from.empty()) return field.default_from;
  Recipe recipe;
  recipe.model.attn.emplace();
  const std::string text = field.print(recipe);
  return field.is_text && text == "\"\"" ? "none" : text;
}

}  // namespace

std::string recipe_to_yaml(const Recipe& recipe) {
  std::string text;
  std::string section;
  for (const RecipeField& field : recipe_fields()) {
    const size_t dot = field.key.find('.');
    if (field.key.substr(0, dot) != section) {
      section = field.key.substr(0, dot);
      text += section + ":\n";
    }
    if (field.key == "model.attn.layers")
      text += recipe.model.attn ? "  attn:\n" : "  attn: null\n";
    if (!field.applies(recipe)) continue;
    const bool in_attn = field.key.starts_with("model.attn.");
    const std::string name = field.key.substr(field.key.find_last_of('.') + 1);
    text += (in_attn ? "    " : "  ") + name + ": " + field.print(recipe) + "\n";
  }
  return text;
}

std::string ResolvedRecipe::to_yaml() const { return recipe_to_yaml(recipe); }

std::string ResolvedRecipe::digest() const {
  Sha256 sha;
  for (const RecipeField& field : recipe_fields()) {
    if (!field.changes_result || !field.applies(recipe)) continue;
    const std::string line = field.key + ": " + field.print(recipe) + "\n";
    sha.update(line.data(), line.size());
  }
  return sha.hex();
}

std::vector<std::string> digest_differences(const Recipe& now, const Recipe& before) {
  std::vector<std::string> differences;
  for (const RecipeField& field : recipe_fields()) {
    if (!field.changes_result) continue;
    const std::string text = field.applies(now) ? field.print(now) : "none";
    const std::string old_text = field.applies(before) ? field.print(before) : "none";
    if (text != old_text)
      differences.push_back(fmt::format("{}: {}, was {}", field.key, text, old_text));
  }
  return differences;
}

std::vector<RecipeValue> list_values(const ResolvedRecipe& resolved) {
  std::vector<RecipeValue> values;
  for (const RecipeField& field : recipe_fields()) {
    const auto origin = resolved.origins.find(field.key);
    if (origin != resolved.origins.end()) {
      values.push_back({field.key, field.print(resolved.recipe), origin->second});
    }
  }
  return values;
}

std::vector<RecipeKey> recipe_keys() {
  std::vector<RecipeKey> keys;
  for (const RecipeField& field : recipe_fields()) {
    keys.push_back(
        {field.key, field.type, default_text(field), field.description, field.changes_result});
  }
  return keys;
}

std::string recipe_keys_text() {
  std::string text;
  for (const RecipeKey& key : recipe_keys()) {
    const bool is_required = key.default_text == "required";
    text += fmt::format("  {}\n      {}; {}{}\n      {}\n", key.key, key.type,
                        is_required ? "" : "default ", key.default_text, key.description);
  }
  return text;
}

std::string recipe_keys_markdown() {
  std::string text;
  std::string section;
  for (const RecipeKey& key : recipe_keys()) {
    const std::string key_section = key.key.substr(0, key.key.find_last_of('.'));
    if (key_section != section) {
      section = key_section;
      text += fmt::format("{}### {}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                          text.empty() ? "" : "\n", section);
    }
    const std::string name = key.key.substr(key.key.find_last_of('.') + 1);
    text += fmt::format("| `{}`{} | {} | {} | {} |\n", name, key.changes_result ? "" : " \\*",
                        key.type, key.default_text, key.description);
  }
  return text;
}

}  // namespace deltatrain
