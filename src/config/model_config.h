// What a model is: the numbers from which layers, parameters and their names follow. Names are
// those of Hugging Face's config.json in FLA's classes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltatrain {

enum class ModelFamily : uint8_t { kGatedDeltaNet, kKda };  // model_type "gated_deltanet", "kda"

// Multi-head latent attention in the listed blocks of a hybrid ("attn" in config.json).
struct MlaConfig {
  std::vector<int64_t> layers;  // 0-based blocks, ascending
  int64_t num_heads = 0;
  std::optional<int64_t> q_lora_rank;  // absent: one projection, no rank norm
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // even
  int64_t v_head_dim = 0;
  double rope_theta = 10000;
  double norm_eps = 1e-6;     // of the rank norms; an FLA folder that doesn't say means 1e-5
  bool double_norms = false;  // a second norm behind each rank norm: Megatron's Transformer Engine

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  friend bool operator==(const MlaConfig&, const MlaConfig&) = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kGatedDeltaNet;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_heads = 0;    // q and k heads
  int64_t num_v_heads = 0;  // value heads, a multiple of num_heads
  int64_t head_dim = 0;     // width of q and k per head
  double expand_v = 1;      // value width per head = head_dim * expand_v, a whole number
  int64_t conv_size = 4;
  bool use_short_conv = true;
  bool use_gate = true;               // GDN's output gate
  bool allow_neg_eigval = false;      // beta in (0, 2)
  bool safe_gate = false;             // KDA: A_log starts at 0
  std::optional<double> lower_bound;  // KDA: bounded decay
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  int64_t max_position_embeddings = 2048;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> pad_token_id;
  std::optional<MlaConfig> attn;

  int64_t head_v_dim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * expand_v + 0.5);
  }
  int64_t key_dim() const { return num_heads * head_dim; }
  int64_t value_dim() const { return num_v_heads * head_v_dim(); }
  bool is_mla_layer(int64_t layer) const;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// A value that no model can have, or one that contradicts another.
struct ConfigProblem {
  std::string key;  // "num_heads", "attn.layers"
  std::string expected;
  std::string got;
};

// The first problem, in the order of the fields.
std::optional<ConfigProblem> find_problem(const ModelConfig& config);

// Throws ConfigError, "WHERE: model.KEY: expected ..., got ...", for find_problem()'s finding.
// `where` is a file name or "".
void validate(const ModelConfig& config, const std::string& where);

// Exact number of parameters, tied embeddings counted once.
int64_t count_parameters(const ModelConfig& config);

// Model FLOPs of forward and backward per trained token at this sequence length, multiply-add = 2,
// counted from the shapes: dense products three times (forward, dx, dW), delta rule and attention
// as docs/maths/flops.md lists them.
double count_flops_per_token(const ModelConfig& config, int64_t seq_length);

}  // namespace deltatrain
