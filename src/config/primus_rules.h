// What becomes of the keys of a Primus experiment that no recipe key stands for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/yaml_tree.h"

namespace deltatrain::primus {

enum class RuleKind : uint8_t {
  kInert,     // any value: it doesn't change what is trained
  kOnly,      // one of `allowed`, else refused
  kOrLeaked,  // one of `allowed`; another value is refused if the author gave it, else corrected
};

struct Rule {
  std::string key;  // ends in * for every key that starts so
  RuleKind kind = RuleKind::kInert;
  std::vector<std::string> allowed;  // as YAML text
  std::string note;
};

// The rule for a key, the exact one before one with *; null for a key that nobody knows.
const Rule* find_rule(std::string_view key);

// Whether a value is one of rule.allowed, numbers compared as numbers and booleans as booleans.
bool is_allowed(const Rule& rule, const YamlNode& value);

// Every name that a misspelt key can have meant: keys of rules, those that are mapped not included.
std::vector<std::string> rule_keys();

// Megatron's default of an option, as YAML text, for the options that matter here.
std::optional<std::string> megatron_default(std::string_view key);

// A layer specification of the reference and what it builds.
struct Spec {
  std::string name;
  bool is_kda;                 // else Gated DeltaNet
  bool is_transformer_engine;  // norms fused into the layers after them
};
const Spec* find_spec(std::string_view name);

// Rows of the embedding, and ids, of the tokenizers that the reference's experiments name.
struct KnownTokenizer {
  std::string name;
  int64_t vocab_size;
  int64_t bos_token_id;
  int64_t eos_token_id;
};
const KnownTokenizer* find_tokenizer(std::string_view name);

// A key that chooses among the reference's kernels,
// with the environment variable that goes before it.
struct Knob {
  std::string key;
  std::string environment;  // "" for none
  std::string default_text;
};
const std::vector<Knob>& kernel_knobs();

}  // namespace deltatrain::primus
