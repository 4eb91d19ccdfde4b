#include "config/primus_presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/files.h"

namespace deltatrain::primus {

namespace {

namespace fs = std::filesystem;

using Values = std::map<std::string, Value>;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Replaces ${NAME} and ${NAME:default} in every string
// of a tree, and says which names had a part in it.
class Interpolation {
 public:
  explicit Interpolation(std::string place) : place_(std::move(place)) {}

  void apply(YamlNode& node) {
    for (YamlNode& item : node.items) apply(item);
    if (!node.is_scalar()) return;
    const std::string before = node.text;
    if (!substitute(node.text)) return;
    // Only a string in which something was replaced is coerced, quoted or not.
    node.quoted = false;
    const bool typed =
        lower(node.text) == "true" || lower(node.text) == "false" || to_number(node).has_value();
    if (!typed && node.text != "null") node.quoted = true;
  }

  const std::string& sources() const { return sources_; }

 private:
  bool substitute(std::string& text) {
    std::string result;
    size_t from = 0;
    for (;;) {
      const size_t start = text.find("${", from);
      const size_t end = start == std::string::npos ? start : text.find('}', start);
      if (end == std::string::npos) break;
      const std::string inside = text.substr(start + 2, end - start - 2);
      const size_t colon = inside.find(':');
      const std::string name = inside.substr(0, colon);
      if (name.empty() ||
          name.find('{') != std::string::npos) {  // not a placeholder: it stays as it is
        result += text.substr(from, start + 2 - from);
        from = start + 2;
        continue;
      }
      result += text.substr(from, start - from);
      if (const char* value = std::getenv(name.c_str()); value != nullptr) {
        result += value;
        sources_ += (sources_.empty() ? "environment " : ", environment ") + name;
      } else if (colon != std::string::npos) {
        result += inside.substr(colon + 1);
        sources_ += (sources_.empty() ? "default of " : ", default of ") + name;
      } else {
        throw ConfigError(error_text(place_, "", "the environment variable " + name + " to be set",
                                     quoted_text(text)));
      }
      replaced_ = true;
      from = end + 1;
    }
    const bool replaced = replaced_;
    replaced_ = false;
    if (replaced) text = result + text.substr(from);
    return replaced;
  }

  std::string place_;
  std::string sources_;
  bool replaced_ = false;
};

// A file's root mapping, empty for an empty file.
YamlNode read_mapping(const fs::path& file) {
  YamlNode root = parse_yaml(read_file(file, kMaxYamlBytes), file.string());
  if (root.is_null()) root.kind = YamlNode::Kind::kMap;
  if (!root.is_map())
    throw ConfigError(error_text(file.string(), "", "a mapping", yaml_text(root)));
  return root;
}

Value make_value(const YamlNode& item, const fs::path& file, Layer layer) {
  const std::string place = file.string() + ":" + std::to_string(item.key_line);
  Value value{item, place, layer};
  Interpolation interpolation(place);
  interpolation.apply(value.node);
  if (!interpolation.sources().empty()) value.origin += " (" + interpolation.sources() + ")";
  return value;
}

// Merges a preset and what it extends into `values`; later calls win.
void add_preset(const fs::path& file, Layer own_layer, Layer base_layer,
                std::vector<fs::path>& chain, Values& values,
                std::vector<std::pair<std::string, Value>>& ignored_bases) {
  const fs::path canonical = fs::weakly_canonical(file);
  if (std::find(chain.begin(), chain.end(), canonical) != chain.end()) {
    throw ConfigError(error_text(file.string(), "extends", "a chain that ends", "a circle"));
  }
  chain.push_back(canonical);
  const YamlNode root = read_mapping(file);
  if (const YamlNode* bases = root.find("extends")) {
    std::vector<YamlNode> names = bases->is_list() ? bases->items : std::vector<YamlNode>{*bases};
    for (const YamlNode& name : names) {
      if (!name.is_scalar()) {
        throw ConfigError(error_text(file.string() + ":" + std::to_string(bases->key_line),
                                     "extends", "a path or a list of paths", yaml_text(*bases)));
      }
      add_preset((file.parent_path() / name.text).lexically_normal(), base_layer, base_layer, chain,
                 values, ignored_bases);
    }
  }
  for (const YamlNode& item : root.items) {
    if (item.key == "extends") continue;
    if (item.key == "bases" || item.key == "includes") {
      ignored_bases.emplace_back(item.key, make_value(item, file, own_layer));
    } else {
      values[item.key] = make_value(item, file, own_layer);
    }
  }
  chain.pop_back();
}

fs::path find_presets(const fs::path& file) {
  for (fs::path folder = fs::absolute(file).lexically_normal().parent_path();;
       folder = folder.parent_path()) {
    if (fs::is_directory(folder / "primus" / "configs")) {
      const fs::path near = folder.lexically_relative(fs::current_path());
      return near.empty() || *near.begin() == ".." ? folder : near;  // shorter in messages
    }
    if (folder == folder.parent_path()) break;
  }
  throw ConfigError(error_text(file.string(), "",
                               "a parent folder with primus/configs, or --presets FOLDER", "none"));
}

const YamlNode& require_text(const YamlNode& module, const std::string& key, const fs::path& file) {
  const YamlNode* value = module.find(key);
  if (value == nullptr || !value->is_scalar()) {
    throw ConfigError(error_text(file.string() + ":" + std::to_string(module.key_line),
                                 "modules." + module.key + "." + key, "a name",
                                 value == nullptr ? "nothing" : yaml_text(*value)));
  }
  return *value;
}

void add_surroundings(const YamlNode& root, const fs::path& file, Values& surroundings) {
  for (const YamlNode& item : root.items) {
    if (item.key == "modules") continue;
    if (item.key == "env" && item.is_map()) {
      for (const YamlNode& variable : item.items) {
        surroundings["env." + variable.key] = make_value(variable, file, Layer::kExperiment);
      }
    } else {
      surroundings[item.key] = make_value(item, file, Layer::kExperiment);
    }
  }
}

const YamlNode& find_trainer(const YamlNode& root, const fs::path& file, Values& surroundings) {
  const YamlNode* modules = root.find("modules");
  if (modules == nullptr || !modules->is_map()) {
    throw ConfigError(error_text(file.string(), "modules", "a mapping with one trainer",
                                 modules == nullptr ? "nothing" : yaml_text(*modules)));
  }
  const YamlNode* trainer = nullptr;
  for (const YamlNode& module : modules->items) {
    if (module.key.find("trainer") == std::string::npos) {
      surroundings["modules." + module.key] = make_value(module, file, Layer::kExperiment);
    } else if (trainer != nullptr) {
      throw ConfigError(error_text(file.string() + ":" + std::to_string(module.key_line), "modules",
                                   "one trainer", trainer->key + " and " + module.key));
    } else {
      trainer = &module;
    }
  }
  if (trainer == nullptr || !trainer->is_map()) {
    throw ConfigError(
        error_text(file.string(), "modules", "a module whose name contains trainer", "none"));
  }
  return *trainer;
}

}  // namespace

bool is_null(const YamlNode& node) {
  return node.is_null() || (node.is_scalar() && node.text == "null");
}

std::optional<bool> to_boolean(const YamlNode& node) {
  if (!node.is_plain()) return std::nullopt;
  const std::string text = lower(node.text);
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

std::optional<int64_t> to_integer(const YamlNode& node) {
  if (!node.is_plain()) return std::nullopt;
  std::string text = node.text;
  std::erase(text, '_');
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> to_number(const YamlNode& node) {
  if (!node.is_plain()) return std::nullopt;
  double value = 0;
  const auto [stop, error] =
      std::from_chars(node.text.data(), node.text.data() + node.text.size(), value);
  if (error != std::errc() || stop != node.text.data() + node.text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

Experiment load_experiment(const fs::path& file, const fs::path& presets,
                           const std::vector<std::string>& overrides) {
  const YamlNode root = read_mapping(file);
  Experiment experiment;
  add_surroundings(root, file, experiment.surroundings);
  const YamlNode& trainer = find_trainer(root, file, experiment.surroundings);
  for (const YamlNode& item : trainer.items) {
    if (item.key != "framework" && item.key != "config" && item.key != "model" &&
        item.key != "overrides") {
      experiment.surroundings["modules." + trainer.key + "." + item.key] =
          make_value(item, file, Layer::kExperiment);
    }
  }
  const std::string framework =
      make_value(require_text(trainer, "framework", file), file, Layer::kExperiment).node.text;
  if (framework != "megatron") {
    throw ConfigError(error_text(file.string(), "modules." + trainer.key + ".framework", "megatron",
                                 quoted_text(framework)));
  }
  const fs::path configs = (presets.empty() ? find_presets(file) : presets) / "primus" / "configs";
  const auto preset = [&](const char* kind, const char* key) {
    return configs / kind / framework /
           make_value(require_text(trainer, key, file), file, Layer::kExperiment).node.text;
  };
  std::vector<fs::path> chain;
  Values model;
  add_preset(preset("modules", "config"), Layer::kModule, Layer::kModule, chain,
             experiment.settings, experiment.ignored_bases);
  add_preset(preset("models", "model"), Layer::kModel, Layer::kModelBase, chain, model,
             experiment.ignored_bases);
  experiment.settings.insert(model.begin(), model.end());  // a key in both keeps the module's value

  if (const YamlNode* given = trainer.find("overrides"); given != nullptr && !given->is_null()) {
    if (!given->is_map()) {
      throw ConfigError(error_text(file.string() + ":" + std::to_string(given->key_line),
                                   "overrides", "a mapping", yaml_text(*given)));
    }
    for (const YamlNode& item : given->items) {
      experiment.settings[item.key] = make_value(item, file, Layer::kExperiment);
    }
  }
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ConfigError(error_text("--set", "", "KEY=VALUE", quoted_text(text)));
    }
    const std::string key = text.substr(0, equals);
    experiment.settings[key] =
        Value{parse_yaml(text.substr(equals + 1), "--set " + key, /*line_numbers=*/false), "--set",
              Layer::kCommandLine};
  }
  return experiment;
}

}  // namespace deltatrain::primus
