// A Primus experiment file as a recipe, with a report of what became of every key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/recipe.h"

namespace deltatrain {

enum class ImportStatus : uint8_t {
  kMapped,   // stands in the recipe, or is what these models always are
  kInert,    // does not change what is trained
  kRefused,  // would change it in a way that this program does not have
  kLeaked,   // what the reference would silently train with, and its author hardly meant
};

const char* import_status_name(ImportStatus status);  // "mapped", ...

struct ImportRow {
  ImportStatus status = ImportStatus::kInert;
  std::string key;            // of the experiment
  std::string value;          // as YAML
  std::string origin;         // "FILE:LINE", "environment NAME", "--set", "Megatron's default"
  std::string note;           // the recipe key, or the reason
  bool is_framework = false;  // inert, from the framework's presets
};

struct ImportOptions {
  std::filesystem::path presets;  // folder that holds primus/configs; empty: found above the file
  std::vector<std::string> overrides;  // "key=value"
  bool keep_epsilon = false;           // a norm epsilon that leaked in is kept instead of corrected
};

struct ImportResult {
  Recipe recipe;  // complete only if nothing is refused
  std::vector<ImportRow> rows;

  int64_t count(ImportStatus status) const;
};

// Throws ConfigError and FileError for files that cannot be read, and for a recipe that would
// contradict itself; what this program does not do becomes rows.
ImportResult import_experiment(const std::filesystem::path& file, const ImportOptions& options);

}  // namespace deltatrain
