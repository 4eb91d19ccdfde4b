// The Namespace `args` of Megatron's checkpoints: what the model was, as far as it says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "formats/pickle.h"

namespace deltatrain::convert {

class MegatronArgs {
 public:
  // `args`: the value of the tree, or null. Anything but a Namespace counts as absent.
  explicit MegatronArgs(const formats::PickleValue* args);

  bool present() const { return attributes_ != nullptr; }
  // Absent where the attribute is, is None, or is of another kind.
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> text(std::string_view name) const;

 private:
  const formats::PickleValue* find(std::string_view name) const;
  const formats::PickleValue* attributes_ = nullptr;
};

// What the tensors themselves say.
struct StoredModelFacts {
  ModelFamily family = ModelFamily::kGatedDeltaNet;
  std::vector<int64_t> attention_blocks;
  bool has_query_rank = false;
  bool has_double_norms = false;  // latent attention under Transformer Engine
  int64_t vocabulary_rows = 0;
};

// The model that a run with these args trained. ConfigError "WHERE: args.NAME: ..." for a missing
// or impossible value, UnsupportedError for one that makes another model (LayerNorm, biases).
ModelConfig config_from_args(const MegatronArgs& args, const StoredModelFacts& facts,
                             const std::string& where);

// Throws ConfigError for the first value of `config` that args contradict.
void require_same_model(const ModelConfig& config, const MegatronArgs& args,
                        const StoredModelFacts& facts, const std::string& where);

}  // namespace deltatrain::convert
