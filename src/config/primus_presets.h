// A Primus experiment file with the presets it names, merged as Primus merges them: every value
// with the place it comes from and how near to the author's hand that place is.
//
// What is reproduced: extends chains, "${NAME:default}" and the coercion after it, the order of the
// layers, bases: and includes: that inherit nothing. PyYAML reads the files of the reference: yes,
// no, on and off are booleans there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/yaml_tree.h"

namespace deltatrain::primus {

// Weakest first. From kModel on a value is the author's word; below, it came along.
enum class Layer : uint8_t { kMegatron, kModelBase, kModule, kModel, kExperiment, kCommandLine };

struct Value {
  YamlNode node;       // after interpolation
  std::string origin;  // "FILE:LINE", "FILE:LINE (environment NAME)", "--set", "Megatron's default"
  Layer layer = Layer::kMegatron;

  bool is_declared() const { return layer >= Layer::kModel; }
};

struct Experiment {
  using Values = std::map<std::string, Value>;
  Values settings;      // module and model keys and overrides, merged
  Values surroundings;  // all but the trainer module: work_group, env.NAME, platform, ...
  std::vector<std::pair<std::string, Value>> ignored_bases;  // bases: and includes:
};

// `presets` is the folder that holds primus/configs; empty: a parent of the file that does.
// `overrides` are "key=value". Throws ConfigError and FileError, naming file and line.
Experiment load_experiment(const std::filesystem::path& file, const std::filesystem::path& presets,
                           const std::vector<std::string>& overrides);

// Values as PyYAML and Primus see them. Numbers may
// also be written 2e-4, which PyYAML takes for text.
std::optional<bool> to_boolean(const YamlNode& node);
std::optional<int64_t> to_integer(const YamlNode& node);
std::optional<double> to_number(const YamlNode& node);
bool is_null(const YamlNode& node);  // null, or the text "null"

}  // namespace deltatrain::primus
