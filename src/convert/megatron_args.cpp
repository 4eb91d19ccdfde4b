#include "convert/megatron_args.h"

#include <fmt/format.h>

#include "base/error.h"

namespace deltatrain::convert {

using formats::PickleKind;
using formats::PickleValue;

MegatronArgs::MegatronArgs(const PickleValue* args) {
  if (args == nullptr || !args->is(PickleKind::kCall) || args->text() != "argparse Namespace")
    return;
  if (args->node->state.is(PickleKind::kDict)) attributes_ = &args->node->state;
}

const PickleValue* MegatronArgs::find(std::string_view name) const {
  return attributes_ == nullptr ? nullptr : attributes_->find(name);
}

std::optional<int64_t> MegatronArgs::integer(std::string_view name) const {
  const PickleValue* value = find(name);
  if (value == nullptr || !value->is(PickleKind::kInteger)) return std::nullopt;
  return value->integer;
}

std::optional<double> MegatronArgs::number(std::string_view name) const {
  const PickleValue* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is(PickleKind::kInteger)) return static_cast<double>(value->integer);
  if (value->is(PickleKind::kFloat)) return value->number;
  return std::nullopt;
}

std::optional<bool> MegatronArgs::boolean(std::string_view name) const {
  const PickleValue* value = find(name);
  if (value == nullptr || !value->is(PickleKind::kBool)) return std::nullopt;
  return value->boolean;
}

std::optional<std::string> MegatronArgs::text(std::string_view name) const {
  const PickleValue* value = find(name);
  if (value == nullptr || !value->is(PickleKind::kText)) return std::nullopt;
  return value->text();
}

namespace {

// args to values of the model, each read once, so that both functions below share the list.
class ArgsReader {
 public:
  ArgsReader(const MegatronArgs& args, const std::string& where) : args_(args), where_(where) {}

  int64_t required(const char* name) const {
    const auto value = args_.integer(name);
    if (!value) throw ConfigError(error_text(where_, path(name), "a whole number", "none"));
    return *value;
  }

  double required_number(const char* name) const {
    const auto value = args_.number(name);
    if (!value) throw ConfigError(error_text(where_, path(name), "a number", "none"));
    return *value;
  }

  void refuse(const char* name, const std::string& expected, const std::string& got) const {
    throw UnsupportedError(error_text(where_, path(name), expected, got));
  }

  const MegatronArgs& args() const { return args_; }

 private:
  static std::string path(const char* name) { return std::string("args.") + name; }
  const MegatronArgs& args_;
  const std::string& where_;
};

void refuse_other_models(const ArgsReader& reader) {
  if (const auto kind = reader.args().text("normalization"); kind && *kind != "RMSNorm")
    reader.refuse("normalization", "RMSNorm", *kind + ", which makes another model");
  if (reader.args().boolean("add_bias_linear").value_or(false))
    reader.refuse("add_bias_linear", "False", "True: linear layers with biases are another model");
  if (reader.args().boolean("gated_linear_unit") == false &&
      reader.args().boolean("swiglu") == false)
    reader.refuse("swiglu", "True", "False");
  for (const char* name : {"tensor_model_parallel_size", "pipeline_model_parallel_size"}) {
    if (const auto ranks = reader.args().integer(name); ranks && *ranks != 1)
      reader.refuse(name, "1", std::to_string(*ranks));
  }
  const auto factor = reader.args().number("rotary_scaling_factor");
  if (reader.args().boolean("multi_latent_attention").value_or(false) && factor && *factor != 1)
    reader.refuse("rotary_scaling_factor", "1", fmt::format("{}", *factor));
}

}  // namespace

ModelConfig config_from_args(const MegatronArgs& args, const StoredModelFacts& facts,
                             const std::string& where) {
  const ArgsReader reader(args, where);
  refuse_other_models(reader);
  ModelConfig c;
  c.family = facts.family;
  c.hidden_size = reader.required("hidden_size");
  c.intermediate_size = reader.required("ffn_hidden_size");
  const int64_t sublayers = reader.required("num_layers");
  if (sublayers % 2 != 0)
    throw ConfigError(error_text(where, "args.num_layers",
                                 "an even number: a mixer and an MLP per block",
                                 std::to_string(sublayers)));
  c.num_hidden_layers = sublayers / 2;
  c.num_heads = reader.required("linear_num_key_heads");
  c.num_v_heads = reader.required("linear_num_value_heads");
  c.head_dim = reader.required("linear_key_head_dim");
  const int64_t value_width = reader.required("linear_value_head_dim");
  if (c.head_dim < 1)
    throw ConfigError(
        error_text(where, "args.linear_key_head_dim", "a number > 0", std::to_string(c.head_dim)));
  c.expand_v = static_cast<double>(value_width) / static_cast<double>(c.head_dim);
  c.conv_size = reader.required("linear_conv_kernel_dim");
  c.use_short_conv = args.boolean("use_short_conv").value_or(true);
  c.norm_eps = reader.required_number("layernorm_epsilon");
  c.initializer_range = args.number("init_method_std").value_or(0.02);
  c.tie_word_embeddings = !args.boolean("untie_embeddings_and_output_weights").value_or(false);
  c.max_position_embeddings =
      args.integer("max_position_embeddings").value_or(args.integer("seq_length").value_or(2048));
  c.vocab_size = args.integer("vocab_size").value_or(facts.vocabulary_rows);
  if (!facts.attention_blocks.empty()) {
    MlaConfig a;
    a.layers = facts.attention_blocks;
    a.num_heads = reader.required("num_attention_heads");
    if (facts.has_query_rank) a.q_lora_rank = reader.required("q_lora_rank");
    a.kv_lora_rank = reader.required("kv_lora_rank");
    a.qk_nope_head_dim = reader.required("qk_head_dim");
    a.qk_rope_head_dim = reader.required("qk_pos_emb_head_dim");
    a.v_head_dim = reader.required("v_head_dim");
    a.rope_theta = args.number("rotary_base").value_or(10000);
    a.norm_eps = c.norm_eps;
    a.double_norms = facts.has_double_norms;
    c.attn = a;
  }
  validate(c, where + ": args");
  return c;
}

void require_same_model(const ModelConfig& config, const MegatronArgs& args,
                        const StoredModelFacts& facts, const std::string& where) {
  const ModelConfig stored = config_from_args(args, facts, where);
  const auto check = [&where](const char* key, double wanted, double found) {
    if (wanted != found)
      throw ConfigError(error_text(where, std::string("model.") + key,
                                   fmt::format("{} as the checkpoint's args say", found),
                                   fmt::format("{}", wanted)));
  };
  const auto whole = [&check](const char* key, int64_t wanted, int64_t found) {
    check(key, static_cast<double>(wanted), static_cast<double>(found));
  };
  whole("hidden_size", config.hidden_size, stored.hidden_size);
  whole("intermediate_size", config.intermediate_size, stored.intermediate_size);
  whole("num_hidden_layers", config.num_hidden_layers, stored.num_hidden_layers);
  whole("num_heads", config.num_heads, stored.num_heads);
  whole("num_v_heads", config.num_v_heads, stored.num_v_heads);
  whole("head_dim", config.head_dim, stored.head_dim);
  check("expand_v", config.expand_v, stored.expand_v);
  whole("conv_size", config.conv_size, stored.conv_size);
  check("norm_eps", config.norm_eps, stored.norm_eps);
  check("tie_word_embeddings", config.tie_word_embeddings ? 1 : 0,
        stored.tie_word_embeddings ? 1 : 0);
  if (!config.attn || !stored.attn) return;  // the tensors have said which blocks have it
  whole("attn.num_heads", config.attn->num_heads, stored.attn->num_heads);
  whole("attn.qk_nope_head_dim", config.attn->qk_nope_head_dim, stored.attn->qk_nope_head_dim);
  whole("attn.qk_rope_head_dim", config.attn->qk_rope_head_dim, stored.attn->qk_rope_head_dim);
  whole("attn.v_head_dim", config.attn->v_head_dim, stored.attn->v_head_dim);
  check("attn.rope_theta", config.attn->rope_theta, stored.attn->rope_theta);
}

}  // namespace deltatrain::convert
