#include "config/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace deltatrain {

namespace {

// Far above any model, and small enough that no product
// of two sizes and a number of layers overflows.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = (int64_t{1} << 31) - 1;  // token ids are i32
constexpr int64_t kMaxLayers = 4096;

std::string text(int64_t value) { return std::to_string(value); }
std::string text(double value) { return fmt::format("{}", value); }

using Problem = std::optional<ConfigProblem>;

Problem check_range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return std::nullopt;
  return ConfigProblem{key, fmt::format("a whole number from {} to {}", low, high), text(value)};
}

Problem check_positive(const char* key, double value) {
  if (std::isfinite(value) && value > 0) return std::nullopt;
  return ConfigProblem{key, "a number > 0", text(value)};
}

Problem check_token(const char* key, const std::optional<int64_t>& id, int64_t vocab_size) {
  if (!id.has_value() || (*id >= 0 && *id < vocab_size)) return std::nullopt;
  return ConfigProblem{key, fmt::format("null or a token id from 0 to {}", vocab_size - 1),
                       text(*id)};
}

template <class... Problems>
Problem first_of(Problems... problems) {
  Problem found;
  ((found.has_value() ? void() : void(found = problems)), ...);
  return found;
}

Problem find_width_problem(const ModelConfig& c) {
  Problem found = first_of(check_range("vocab_size", c.vocab_size, 2, kMaxVocabulary),
                           check_range("hidden_size", c.hidden_size, 1, kMaxWidth),
                           check_range("intermediate_size", c.intermediate_size, 1, kMaxWidth),
                           check_range("num_hidden_layers", c.num_hidden_layers, 1, kMaxLayers),
                           check_range("num_heads", c.num_heads, 1, kMaxWidth),
                           check_range("num_v_heads", c.num_v_heads, 1, kMaxWidth),
                           check_range("head_dim", c.head_dim, 1, kMaxWidth),
                           check_positive("expand_v", c.expand_v),
                           check_range("conv_size", c.conv_size, 1, 64));
  if (found) return found;
  if (c.num_v_heads % c.num_heads != 0) {
    return ConfigProblem{"num_v_heads", fmt::format("a multiple of num_heads ({})", c.num_heads),
                         text(c.num_v_heads)};
  }
  const double value_width = static_cast<double>(c.head_dim) * c.expand_v;
  if (value_width < 1 || value_width > static_cast<double>(kMaxWidth) ||
      value_width != std::floor(value_width)) {
    return ConfigProblem{"expand_v",
                         fmt::format("head_dim ({}) * expand_v a whole number >= 1", c.head_dim),
                         text(c.expand_v)};
  }
  if (c.key_dim() > kMaxWidth || c.value_dim() > kMaxWidth) {
    return ConfigProblem{"head_dim", fmt::format("heads of at most {} channels in all", kMaxWidth),
                         text(std::max(c.key_dim(), c.value_dim()))};
  }
  return std::nullopt;
}

Problem find_variant_problem(const ModelConfig& c) {
  if (!c.use_short_conv) {
    return ConfigProblem{"use_short_conv",
                         "true, mixers without short convolutions are not supported", "false"};
  }
  if (c.family == ModelFamily::kKda && !c.use_gate) {
    return ConfigProblem{"use_gate", "true for model_type kda, whose output gate is fixed",
                         "false"};
  }
  if (c.family == ModelFamily::kGatedDeltaNet && c.safe_gate) {
    return ConfigProblem{"safe_gate", "false for model_type gated_deltanet", "true"};
  }
  if (c.family == ModelFamily::kGatedDeltaNet && c.lower_bound) {
    return ConfigProblem{"lower_bound", "null for model_type gated_deltanet", text(*c.lower_bound)};
  }
  if (c.lower_bound && !(std::isfinite(*c.lower_bound) && *c.lower_bound < 0)) {
    return ConfigProblem{"lower_bound", "null or a number < 0", text(*c.lower_bound)};
  }
  if (c.safe_gate && !(c.lower_bound && *c.lower_bound >= -5)) {
    return ConfigProblem{"lower_bound", "a number from -5 to 0 because safe_gate is true",
                         c.lower_bound ? text(*c.lower_bound) : "null"};
  }
  return first_of(
      check_positive("norm_eps", c.norm_eps),
      check_positive("initializer_range", c.initializer_range),
      check_range("max_position_embeddings", c.max_position_embeddings, 1, int64_t{1} << 40),
      check_token("bos_token_id", c.bos_token_id, c.vocab_size),
      check_token("eos_token_id", c.eos_token_id, c.vocab_size),
      check_token("pad_token_id", c.pad_token_id, c.vocab_size));
}

Problem find_mla_problem(const MlaConfig& a, int64_t num_hidden_layers) {
  if (a.layers.empty()) {
    return ConfigProblem{"attn.layers", "at least one block, or attn: null", "[]"};
  }
  for (size_t i = 0; i < a.layers.size(); ++i) {
    if (Problem found = check_range("attn.layers", a.layers[i], 0, num_hidden_layers - 1))
      return found;
    if (i > 0 && a.layers[i] <= a.layers[i - 1]) {
      return ConfigProblem{"attn.layers", "block numbers in ascending order, each once",
                           fmt::format("{} after {}", a.layers[i], a.layers[i - 1])};
    }
  }
  Problem found = first_of(check_range("attn.num_heads", a.num_heads, 1, kMaxWidth),
                           check_range("attn.q_lora_rank", a.q_lora_rank.value_or(1), 1, kMaxWidth),
                           check_range("attn.kv_lora_rank", a.kv_lora_rank, 1, kMaxWidth),
                           check_range("attn.qk_nope_head_dim", a.qk_nope_head_dim, 1, kMaxWidth),
                           check_range("attn.qk_rope_head_dim", a.qk_rope_head_dim, 2, kMaxWidth),
                           check_range("attn.v_head_dim", a.v_head_dim, 1, kMaxWidth),
                           check_positive("attn.rope_theta", a.rope_theta),
                           check_positive("attn.norm_eps", a.norm_eps));
  if (found) return found;
  if (a.qk_rope_head_dim % 2 != 0) {
    return ConfigProblem{"attn.qk_rope_head_dim", "an even number", text(a.qk_rope_head_dim)};
  }
  const int64_t widest = std::max(a.qk_head_dim(), a.qk_nope_head_dim + a.v_head_dim);
  if (a.num_heads * widest > kMaxWidth) {
    return ConfigProblem{"attn.num_heads",
                         fmt::format("heads of at most {} channels in all", kMaxWidth),
                         text(a.num_heads * widest)};
  }
  return std::nullopt;
}

// Parameters of the token mixer of one block.
int64_t count_delta_parameters(const ModelConfig& c) {
  const int64_t D = c.hidden_size, G = c.num_v_heads, V = c.head_v_dim();
  int64_t count = 2 * c.key_dim() * D + c.value_dim() * D;  // q, k, v
  if (c.use_short_conv) count += (2 * c.key_dim() + c.value_dim()) * c.conv_size;
  count += G * D + G + V + D * c.value_dim();  // beta, A_log, norm, out
  if (c.family == ModelFamily::kGatedDeltaNet) {
    count += G * D + G;  // decay, dt_bias
    if (c.use_gate) count += c.value_dim() * D;
  } else {
    const int64_t gate_width = G * c.head_dim;
    count += V * D + gate_width * V + gate_width;        // decay pair, dt_bias
    count += V * D + c.value_dim() * V + c.value_dim();  // output gate pair, bias
  }
  return count;
}

int64_t count_mla_parameters(const ModelConfig& c) {
  const MlaConfig& a = *c.attn;
  const int64_t D = c.hidden_size, query_width = a.num_heads * a.qk_head_dim();
  const int64_t norms = a.double_norms ? 2 : 1;
  int64_t count = a.q_lora_rank ? *a.q_lora_rank * (D + norms + query_width) : D * query_width;
  count += a.qk_rope_head_dim * D;
  count += a.kv_lora_rank * (D + norms + a.num_heads * (a.qk_nope_head_dim + a.v_head_dim));
  return count + a.num_heads * a.v_head_dim * D;
}

}  // namespace

bool ModelConfig::is_mla_layer(int64_t layer) const {
  return attn.has_value() && std::binary_search(attn->layers.begin(), attn->layers.end(), layer);
}

std::optional<ConfigProblem> find_problem(const ModelConfig& config) {
  if (Problem found = find_width_problem(config)) return found;
  if (Problem found = find_variant_problem(config)) return found;
  if (config.attn) return find_mla_problem(*config.attn, config.num_hidden_layers);
  return std::nullopt;
}

void validate(const ModelConfig& config, const std::string& where) {
  if (const Problem found = find_problem(config)) {
    throw ConfigError(error_text(where, "model." + found->key, found->expected, found->got));
  }
}

int64_t count_parameters(const ModelConfig& config) {
  const int64_t D = config.hidden_size;
  int64_t count = config.vocab_size * D * (config.tie_word_embeddings ? 1 : 2) + D;  // final norm
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    count +=
        config.is_mla_layer(layer) ? count_mla_parameters(config) : count_delta_parameters(config);
    count += 3 * config.intermediate_size * D + 2 * D;  // MLP, the block's two norms
  }
  return count;
}

}  // namespace deltatrain
