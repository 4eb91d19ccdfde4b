#include "config/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace deltatrain {

namespace {

using Json = nlohmann::json;

constexpr const char* kGdnClass = "GatedDeltaNetForCausalLM";
constexpr const char* kKdaClass = "KDAForCausalLM";

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// An object of the file and its place in it; absent keys give the default, wrong types throw.
class Section {
 public:
  Section(const Json& object, std::string where, std::string prefix)
      : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& expected,
                           const std::string& got) const {
    throw ConfigError(error_text(where_, prefix_ + key, expected, got));
  }

  // The value, or null where the key is absent or null.
  const Json* find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t integer(const std::string& key, int64_t absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<uint64_t>() >> 62 != 0)) {
      refuse(key, "a whole number", shown(*value));
    }
    return value->get<int64_t>();
  }

  int64_t required_integer(const std::string& key) const {
    if (find(key) == nullptr) refuse(key, "a whole number", "nothing");
    return integer(key, 0);
  }

  std::optional<int64_t> optional_integer(const std::string& key,
                                          std::optional<int64_t> absent) const {
    if (!object_.contains(key)) return absent;
    if (find(key) == nullptr) return std::nullopt;
    return integer(key, 0);
  }

  double number(const std::string& key, double absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number()) refuse(key, "a number", shown(*value));
    return value->get<double>();
  }

  bool boolean(const std::string& key, bool absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse(key, "true or false", shown(*value));
    return value->get<bool>();
  }

  // A key that exists elsewhere and would make another model of this one.
  void refuse_if_set(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr || *value == Json(false)) return;
    refuse(key, "null: this program has no such model", shown(*value));
  }

 private:
  const Json& object_;
  std::string where_;
  std::string prefix_;
};

ModelFamily read_family(const Json& root, const Section& section) {
  const char* supported =
      "\"gated_deltanet\" (GatedDeltaNetForCausalLM) or \"kda\" (KDAForCausalLM)";
  std::optional<ModelFamily> by_type, by_class;
  if (const Json* type = section.find("model_type")) {
    if (*type == "gated_deltanet") by_type = ModelFamily::kGatedDeltaNet;
    if (*type == "kda") by_type = ModelFamily::kKda;
    if (!by_type) section.refuse("model_type", supported, shown(*type));
  }
  if (const Json* classes = section.find("architectures")) {
    const Json* name = classes->is_array() && classes->size() == 1 ? &classes->front() : classes;
    if (*name == kGdnClass || *name == "GatedDeltaNetModel") by_class = ModelFamily::kGatedDeltaNet;
    if (*name == kKdaClass || *name == "KDAModel") by_class = ModelFamily::kKda;
    if (!by_class) section.refuse("architectures", supported, shown(*classes));
    if (by_type && *by_type != *by_class) {
      section.refuse("architectures", "the class of model_type " + shown(root.at("model_type")),
                     shown(*classes));
    }
  }
  if (by_type) return *by_type;
  if (by_class) return *by_class;
  section.refuse("model_type", supported, "nothing");
}

MlaConfig read_attention(const Json& object, const std::string& where) {
  const Section section(object, where, "attn.");
  const Json* type = section.find("type");
  if (type != nullptr && *type != "mla") section.refuse("type", "\"mla\"", shown(*type));
  if (section.find("kv_lora_rank") == nullptr) {
    section.refuse("kv_lora_rank",
                   "a whole number: of attention layers, only multi-head latent ones are supported",
                   "nothing");
  }
  section.refuse_if_set("window_size");
  section.refuse_if_set("qkv_bias");
  section.refuse_if_set("qk_norm");
  section.refuse_if_set("rope_scaling");
  MlaConfig mla;
  const Json* layers = section.find("layers");
  const bool whole = layers != nullptr && layers->is_array() &&
                     std::all_of(layers->begin(), layers->end(),
                                 [](const Json& x) { return x.is_number_integer(); });
  if (!whole)
    section.refuse("layers", "a list of block numbers",
                   layers == nullptr ? "nothing" : shown(*layers));
  mla.layers = layers->get<std::vector<int64_t>>();
  std::sort(mla.layers.begin(), mla.layers.end());
  mla.layers.erase(std::unique(mla.layers.begin(), mla.layers.end()), mla.layers.end());
  mla.num_heads = section.required_integer("num_heads");
  if (const int64_t kv_heads = section.integer("num_kv_heads", mla.num_heads);
      kv_heads != mla.num_heads) {
    section.refuse("num_kv_heads", "num_heads (" + std::to_string(mla.num_heads) + ")",
                   std::to_string(kv_heads));
  }
  mla.q_lora_rank = section.optional_integer("q_lora_rank", std::nullopt);
  mla.kv_lora_rank = section.required_integer("kv_lora_rank");
  mla.qk_nope_head_dim = section.required_integer("qk_nope_head_dim");
  mla.qk_rope_head_dim = section.required_integer("qk_rope_head_dim");
  mla.v_head_dim = section.required_integer("v_head_dim");
  mla.rope_theta = section.number("rope_theta", 10000);
  mla.norm_eps = section.number("norm_eps", 1e-5);  // FLA's layer has this one and no key for it
  mla.double_norms = section.boolean("double_norms", false);  // a key of this program's
  return mla;
}

int64_t default_intermediate_size(int64_t hidden_size, double hidden_ratio,
                                  const Section& section) {
  if (!(hidden_ratio > 0) || hidden_ratio > 1024 || hidden_size < 1 ||
      hidden_size > (int64_t{1} << 20)) {
    section.refuse("hidden_ratio", "a number > 0", fmt::format("{}", hidden_ratio));
  }
  const auto width = static_cast<int64_t>(static_cast<double>(hidden_size) * hidden_ratio * 2 / 3);
  return 256 * ((width + 255) / 256);
}

}  // namespace

ModelConfig model_config_from_hf(std::string_view json, const std::string& where) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    throw ConfigError(
        error_text(where, "", "a JSON object", root.is_discarded() ? "broken JSON" : shown(root)));
  }
  const Section section(root, where, "");
  ModelConfig c;
  c.family = read_family(root, section);
  const bool kda = c.family == ModelFamily::kKda;
  c.vocab_size = section.integer("vocab_size", 32000);
  c.hidden_size = section.integer("hidden_size", 2048);
  c.intermediate_size = section.integer("intermediate_size", 0);
  if (section.find("intermediate_size") == nullptr) {
    c.intermediate_size =
        default_intermediate_size(c.hidden_size, section.number("hidden_ratio", 4), section);
  }
  c.num_hidden_layers = section.integer("num_hidden_layers", kda ? 24 : 21);
  c.num_heads = section.integer("num_heads", kda ? 16 : 6);
  c.num_v_heads = section.integer("num_v_heads", c.num_heads);
  c.head_dim = section.integer("head_dim", kda ? 128 : 256);
  c.expand_v = section.number("expand_v", kda ? 1 : 2);
  c.conv_size = section.integer("conv_size", 4);
  c.use_short_conv = section.boolean("use_short_conv", true);
  c.use_gate = section.boolean("use_gate", true);
  c.allow_neg_eigval = section.boolean("allow_neg_eigval", false);
  c.safe_gate = section.boolean("safe_gate", false);
  if (section.find("lower_bound") != nullptr) c.lower_bound = section.number("lower_bound", 0);
  c.norm_eps = section.number("norm_eps", 1e-6);
  c.initializer_range = section.number("initializer_range", 0.02);
  c.tie_word_embeddings = section.boolean("tie_word_embeddings", false);
  c.max_position_embeddings = section.integer("max_position_embeddings", 2048);
  c.bos_token_id = section.optional_integer("bos_token_id", 1);
  c.eos_token_id = section.optional_integer("eos_token_id", 2);
  c.pad_token_id = section.optional_integer("pad_token_id", std::nullopt);

  if (const Json* act = section.find("hidden_act");
      act != nullptr && *act != "swish" && *act != "silu") {
    section.refuse("hidden_act", "\"swish\"", shown(*act));
  }
  for (const char* key :
       {"attnres_block_size", "window_size", "rope_scaling", "quantization_config", "use_l2warp"}) {
    section.refuse_if_set(key);
  }
  if (const Json* attention = section.find("attn")) {
    if (!attention->is_object()) section.refuse("attn", "null or an object", shown(*attention));
    c.attn = read_attention(*attention, where);
  }
  if (const auto problem = find_problem(c))
    section.refuse(problem->key, problem->expected, problem->got);
  return c;
}

std::string model_config_to_hf(const ModelConfig& c, DType dtype) {
  const bool kda = c.family == ModelFamily::kKda;
  const auto or_null = [](const std::optional<int64_t>& id) {
    return id ? Json(*id) : Json(nullptr);
  };
  Json root = {
      {"architectures", {kda ? kKdaClass : kGdnClass}},
      {"model_type", kda ? "kda" : "gated_deltanet"},
      {"attn", nullptr},
      {"attn_mode", "chunk"},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"hidden_ratio", 4},
      {"hidden_act", "swish"},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_heads", c.num_heads},
      {"num_v_heads", c.num_v_heads},
      {"head_dim", c.head_dim},
      {"expand_v", c.expand_v},
      {"conv_size", c.conv_size},
      {"use_short_conv", c.use_short_conv},
      {"allow_neg_eigval", c.allow_neg_eigval},
      {"norm_eps", c.norm_eps},
      {"initializer_range", c.initializer_range},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"max_position_embeddings", c.max_position_embeddings},
      {"bos_token_id", or_null(c.bos_token_id)},
      {"eos_token_id", or_null(c.eos_token_id)},
      {"pad_token_id", or_null(c.pad_token_id)},
      {"use_cache", true},
      // How FLA computes, not what: the plain forms run wherever PyTorch does.
      {"fuse_norm", false},
      {"fuse_swiglu", false},
      {"fuse_cross_entropy", false},
      {"use_l2warp", false},
  };
  switch (dtype) {
    case DType::kF32:
      root["torch_dtype"] = "float32";
      break;
    case DType::kBF16:
      root["torch_dtype"] = "bfloat16";
      break;
    case DType::kF16:
      root["torch_dtype"] = "float16";
      break;
    default:
      throw ConfigError(
          error_text("config.json", "torch_dtype", "f32, bf16 or f16", dtype_name(dtype)));
  }
  if (kda) {
    root["safe_gate"] = c.safe_gate;
    root["lower_bound"] = c.lower_bound ? Json(*c.lower_bound) : Json(nullptr);
  } else {
    root["use_gate"] = c.use_gate;
    root["fuse_linear_cross_entropy"] = false;
  }
  if (c.attn) {
    const MlaConfig& a = *c.attn;
    root["attn"] = {{"type", "mla"},
                    {"layers", a.layers},
                    {"num_heads", a.num_heads},
                    {"q_lora_rank", or_null(a.q_lora_rank)},
                    {"kv_lora_rank", a.kv_lora_rank},
                    {"qk_nope_head_dim", a.qk_nope_head_dim},
                    {"qk_rope_head_dim", a.qk_rope_head_dim},
                    {"v_head_dim", a.v_head_dim},
                    {"rope_theta", a.rope_theta},
                    {"norm_eps", a.norm_eps}};
    if (a.double_norms) root["attn"]["double_norms"] = true;
  }
  return root.dump(2) + "\n";
}

}  // namespace deltatrain
