#include "config/recipe_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "config/recipe_schema.h"
#include "config/yaml_tree.h"

namespace deltatrain {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSetOrigin = "--set";

struct Given {
  YamlNode value;
  std::string origin;
};

// A value in an error message.
std::string shown(const YamlNode& node) {
  return node.is_plain() ? quoted_text(node.text) : yaml_text(node);
}

bool is_section(const std::string& name) {
  const auto& sections = recipe_sections();
  return std::find(sections.begin(), sections.end(), name) != sections.end();
}

// Names that other programs give to keys of ours.
constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kForeignNames = {{
    {"bases", "base"},
    {"extends", "base"},
    {"includes", "base"},
    {"num_layers", "model.num_hidden_layers"},
    {"ffn_hidden_size", "model.intermediate_size"},
    {"num_attention_heads", "model.num_heads"},
    {"layernorm_epsilon", "model.norm_eps"},
    {"norm_epsilon", "model.norm_eps"},
    {"rms_norm_eps", "model.norm_eps"},
    {"init_method_std", "model.initializer_range"},
    {"learning_rate", "optimizer.lr"},
    {"beta1", "optimizer.adam_beta1"},
    {"beta2", "optimizer.adam_beta2"},
    {"adam_epsilon", "optimizer.adam_eps"},
    {"max_grad_norm", "optimizer.clip_grad"},
    {"warmup_steps", "schedule.lr_warmup_iters"},
    {"lr_scheduler_type", "schedule.lr_decay_style"},
    {"max_steps", "train.train_iters"},
    {"batch_size", "train.global_batch_size"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"train_data_path", "data.train"},
    {"save_steps", "checkpoint.save_interval"},
    {"save", "checkpoint.save_interval"},
    {"logging_steps", "log.log_interval"},
}};

// The key that was probably meant: one of the same section,
// else a known name in or out of place, or "".
std::string find_meant_key(const std::string& key) {
  const size_t dot = key.find_last_of('.');
  const std::string name = key.substr(dot + 1);
  if (dot == std::string::npos) {
    std::vector<std::string> names = recipe_sections();
    names.emplace_back("base");
    if (std::string nearest = nearest_name(key, names); !nearest.empty()) return nearest;
  }
  std::vector<std::string> neighbours, names;
  for (const RecipeField& field : recipe_fields()) {
    const size_t field_dot = field.key.find_last_of('.');
    names.push_back(field.key.substr(field_dot + 1));
    if (field.key.substr(0, field_dot) == key.substr(0, dot)) neighbours.push_back(names.back());
  }
  if (key.starts_with("model.")) neighbours.emplace_back("attn");
  if (const std::string nearest = nearest_name(name, neighbours); !nearest.empty()) {
    return key.substr(0, dot + 1) + nearest;
  }
  for (const auto& [foreign, ours] : kForeignNames) {
    if (name == foreign) return std::string(ours);
  }
  const std::string nearest = nearest_name(name, names);
  for (const RecipeField& field : recipe_fields()) {
    if (!nearest.empty() && field.key.ends_with("." + nearest)) return field.key;
  }
  return "";
}

[[noreturn]] void refuse_unknown(const std::string& place, const std::string& key) {
  const std::string meant = find_meant_key(key);
  throw ConfigError(place + ": " + key + ": unknown key" +
                    (meant.empty() ? "" : "; did you mean " + meant + "?"));
}

// The values of a recipe by key, the chain of bases merged:
// what is given later replaces what came before.
class Values {
 public:
  // Every key and value of a file's root mapping, but base.
  void add_file(const YamlNode& root, const std::string& file) {
    for (const YamlNode& section : root.items) {
      const std::string place = file + ":" + std::to_string(section.key_line);
      if (section.key == "base") continue;
      if (!is_section(section.key)) refuse_unknown(place, section.key);
      if (!section.is_map()) {
        throw ConfigError(
            error_text(place, section.key, "a mapping of keys to values", shown(section)));
      }
      for (const YamlNode& item : section.items) {
        add(section.key + "." + item.key, item, file + ":" + std::to_string(item.key_line), file);
      }
    }
  }

  // "section.key=value"
  void add_override(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || text.substr(0, equals).find('.') == std::string::npos ||
        text.substr(0, equals).find_first_of(" \t\r\n") != std::string::npos) {
      const std::string meant = find_meant_key(text.substr(0, equals));
      throw ConfigError(error_text(kSetOrigin, "", "SECTION.KEY=VALUE", quoted_text(text)) +
                        (meant.find('.') == std::string::npos || meant == text
                             ? ""
                             : "; did you mean " + meant + "?"));
    }
    const std::string key = text.substr(0, equals);
    const std::string value = text.substr(equals + 1);
    const RecipeField* field = find_field(key);
    YamlNode node;
    if (field != nullptr && field->is_text) {
      if (value != "null") {
        node.kind = YamlNode::Kind::kScalar;
        node.text = value;
        node.quoted = true;
      }
    } else {
      node = parse_yaml(value, std::string(kSetOrigin) + " " + key, /*line_numbers=*/false);
    }
    add(key, node, kSetOrigin, "");
  }

  const Given* find(const std::string& key) const {
    const auto found = given_.find(key);
    return found == given_.end() ? nullptr : &found->second;
  }

  bool has_attention() const {
    const auto first = given_.lower_bound("model.attn.");
    return first != given_.end() && first->first.starts_with("model.attn.");
  }

 private:
  void add(const std::string& key, const YamlNode& node, const std::string& origin,
           const std::string& file) {
    if (key == "model.attn") {
      if (node.is_null()) {
        std::erase_if(given_,
                      [](const auto& entry) { return entry.first.starts_with("model.attn."); });
        return;
      }
      if (!node.is_map() || node.items.empty()) {
        throw ConfigError(
            error_text(origin, key, "null or a mapping of keys to values", shown(node)));
      }
      for (const YamlNode& item : node.items) {
        add(key + "." + item.key, item,
            file.empty() ? origin : file + ":" + std::to_string(item.key_line), file);
      }
      return;
    }
    if (find_field(key) == nullptr) refuse_unknown(origin, key);
    given_[key] = Given{node, origin};
  }

  std::map<std::string, Given> given_;
};

std::string shown_chain(const std::vector<fs::path>& chain) {
  std::string text;
  for (const fs::path& file : chain) text += (text.empty() ? "" : " -> ") + file.string();
  return text;
}

YamlNode parse_root(const std::string& text, const std::string& where) {
  YamlNode root = parse_yaml(text, where);
  if (!root.is_map()) {
    throw ConfigError(error_text(where, "", "sections with keys and values",
                                 root.is_null() ? "nothing" : yaml_text(root)));
  }
  return root;
}

// Checks that involve more than one key, with the place of the key that is at fault.
class Checker {
 public:
  Checker(const ResolvedRecipe& resolved, const Values& values, std::string file)
      : resolved_(resolved), values_(values), file_(std::move(file)) {}

  void check() const {
    const Recipe& r = resolved_.recipe;
    if (const auto problem = find_problem(r.model)) {
      refuse("model." + problem->key, problem->expected, problem->got);
    }
    if (r.optimizer.min_lr > r.optimizer.lr) {
      refuse("optimizer.min_lr", fmt::format("at most optimizer.lr ({})", r.optimizer.lr),
             fmt::format("{}", r.optimizer.min_lr));
    }
    if (r.schedule.lr_decay_style != DecayStyle::kConstant &&
        r.schedule.lr_warmup_iters >= r.schedule.lr_decay_iters) {
      refuse("schedule.lr_warmup_iters",
             fmt::format("less than schedule.lr_decay_iters ({})", r.schedule.lr_decay_iters),
             fmt::format("{}", r.schedule.lr_warmup_iters));
    }
    if (r.train.global_batch_size % r.train.micro_batch_size != 0) {
      refuse("train.global_batch_size",
             fmt::format("a multiple of train.micro_batch_size ({})", r.train.micro_batch_size),
             fmt::format("{}", r.train.global_batch_size));
    }
    constexpr int64_t kMaxTokens = int64_t{1} << 60;  // so that counters never overflow
    if (const int64_t most = kMaxTokens / (r.train.global_batch_size * r.train.seq_length);
        r.train.train_iters > most) {
      refuse("train.train_iters", fmt::format("at most {} steps of this size", most),
             fmt::format("{}", r.train.train_iters));
    }
    if (r.data.valid && r.train.eval_iters == 0) {
      refuse("train.eval_iters", "at least 1 because data.valid is given", "0");
    }
    if (r.data.valid && r.data.split) {
      refuse("data.split", "null because data.valid is given", *r.data.split);
    }
    if (r.data.eod_mask_loss && !r.model.eos_token_id) {
      refuse("model.eos_token_id", "an id because data.eod_mask_loss is true", "null");
    }
    const bool rows =
        r.data.order == DataOrder::kTorchDistributed || r.data.order == DataOrder::kHfTrainer;
    if (rows && r.data.split) {
      refuse("data.split", "null because data.order takes rows", *r.data.split);
    }
    if (rows && r.data.packed_documents && !r.model.bos_token_id) {
      refuse("model.bos_token_id",
             "an id because data.packed_documents is true and data.order takes rows", "null");
    }
    if (r.train.fp32_residual_connection && r.train.precision == Precision::kF32) {
      refuse("train.fp32_residual_connection", "false because train.precision is f32 already",
             "true");
    }
  }

  std::vector<std::string> warnings() const {
    const Recipe& r = resolved_.recipe;
    std::vector<std::string> found;
    if (r.schedule.lr_warmup_iters >= r.train.train_iters) {
      found.push_back(
          fmt::format("{}: train.train_iters: the run of {} steps ends within the warm-up of {}",
                      place("train.train_iters"), r.train.train_iters, r.schedule.lr_warmup_iters));
    } else if (r.schedule.lr_decay_style != DecayStyle::kConstant &&
               r.train.train_iters < r.schedule.lr_decay_iters / 4) {
      found.push_back(fmt::format(
          "{}: train.train_iters: the run of {} steps covers less than a quarter of the "
          "learning rate's {}",
          place("train.train_iters"), r.train.train_iters, r.schedule.lr_decay_iters));
    }
    return found;
  }

 private:
  std::string place(const std::string& key) const {
    const Given* given = values_.find(key);
    return given == nullptr ? file_ : given->origin;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected,
                           const std::string& got) const {
    const Given* given = values_.find(key);
    throw ConfigError(
        error_text(place(key), key, expected, given == nullptr ? got : shown(given->value)));
  }

  const ResolvedRecipe& resolved_;
  const Values& values_;
  std::string file_;
};

ResolvedRecipe resolve(const Values& values, const std::string& file) {
  ResolvedRecipe resolved;
  Recipe& recipe = resolved.recipe;
  if (values.has_attention()) recipe.model.attn.emplace();
  for (const RecipeField& field : recipe_fields()) {
    const Given* given = values.find(field.key);
    const bool applies = field.applies(recipe);  // the keys it looks at come first in the table
    if (given == nullptr) {
      if (field.required && applies)
        throw ConfigError(error_text(file, field.key, field.type, "nothing"));
      if (applies) resolved.origins[field.key] = "default";
      continue;
    }
    bool is_read = false;
    try {
      is_read = field.read(given->value, recipe);
    } catch (const ConfigError& error) {
      throw ConfigError(given->origin + ": " + field.key + ": " + error.what());
    }
    if (!is_read) {
      const bool has_variable = !field.is_text && given->value.text.find("${") != std::string::npos;
      throw ConfigError(error_text(given->origin, field.key,
                                   field.type + (has_variable ? " (${...} is for paths only)" : ""),
                                   shown(given->value)));
    }
    if (applies) resolved.origins[field.key] = given->origin;
  }
  // A value that follows another one unless it is given.
  const auto follow = [&](const char* key, const char* other, int64_t& value, int64_t other_value) {
    if (values.find(key) != nullptr) return;
    value = other_value;
    resolved.origins[key] = std::string("default: ") + other;
  };
  follow("model.num_v_heads", "model.num_heads", recipe.model.num_v_heads, recipe.model.num_heads);
  follow("model.max_position_embeddings", "train.seq_length", recipe.model.max_position_embeddings,
         recipe.train.seq_length);
  follow("schedule.lr_decay_iters", "train.train_iters", recipe.schedule.lr_decay_iters,
         recipe.train.train_iters);

  const Checker checker(resolved, values, file);
  checker.check();
  resolved.warnings = checker.warnings();
  return resolved;
}

// The file and its bases, the file first.
std::vector<std::pair<std::string, YamlNode>> read_chain(const fs::path& path) {
  std::vector<std::pair<std::string, YamlNode>> roots;
  std::vector<fs::path> chain = {path};
  std::vector<fs::path> canonical = {fs::weakly_canonical(path)};
  std::string text = read_file(path, kMaxYamlBytes);
  for (;;) {
    const std::string file = chain.back().string();
    roots.emplace_back(file, parse_root(text, file));
    const YamlNode* base = roots.back().second.find("base");
    if (base == nullptr) return roots;
    const std::string place = file + ":" + std::to_string(base->key_line);
    if (!base->is_scalar() || base->text.empty()) {
      throw ConfigError(error_text(place, "base", "the path of one recipe", shown(*base)));
    }
    if (base->text.find("${") != std::string::npos) {
      throw ConfigError(error_text(place, "base", "a path without variables", shown(*base)));
    }
    const fs::path next = (chain.back().parent_path() / base->text).lexically_normal();
    const fs::path next_canonical = fs::weakly_canonical(next);
    const bool is_circle =
        std::find(canonical.begin(), canonical.end(), next_canonical) != canonical.end();
    chain.push_back(next);
    canonical.push_back(next_canonical);
    if (is_circle)
      throw ConfigError(error_text(place, "base", "a chain that ends", shown_chain(chain)));
    try {
      text = read_file(next, kMaxYamlBytes);
    } catch (const FileError& error) {
      throw ConfigError(fmt::format("{}: base: {} ({})", place, error.what(), shown_chain(chain)));
    }
  }
}

}  // namespace

ResolvedRecipe load_recipe(const std::filesystem::path& path,
                           const std::vector<std::string>& overrides) {
  const auto chain = read_chain(path);
  Values values;
  for (auto root = chain.rbegin(); root != chain.rend(); ++root)
    values.add_file(root->second, root->first);
  for (const std::string& text : overrides) values.add_override(text);
  return resolve(values, path.string());
}

ResolvedRecipe parse_recipe(std::string_view yaml, const std::string& where,
                            const std::vector<std::string>& overrides) {
  const YamlNode root = parse_root(std::string(yaml), where);
  if (const YamlNode* base = root.find("base")) {
    throw ConfigError(error_text(where + ":" + std::to_string(base->key_line), "base",
                                 "a resolved recipe", yaml_text(*base)));
  }
  Values values;
  values.add_file(root, where);
  for (const std::string& text : overrides) values.add_override(text);
  return resolve(values, where);
}

}  // namespace deltatrain
