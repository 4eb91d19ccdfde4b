#include "convert/parameter_table.h"

#include <algorithm>

#include "base/check.h"

namespace deltatrain::convert {

namespace {

// The sizes that shapes are made of.
enum class Size : uint8_t {
  kVocabulary,
  kHidden,
  kMlp,
  kKey,         // q/k heads times their width
  kValue,       // value heads times their width
  kValueHeads,  // value heads
  kHeadValue,   // width of one value head
  kDecay,       // value heads times key width: KDA's decay channels
  kOne,
  kConv,   // taps of the short convolution
  kQRank,  // of latent attention
  kKvRank,
  kQuery,  // heads times (nope + rope)
  kRope,
  kKeyValue,  // heads times (nope + v)
  kOut,       // heads times v
};

enum class When : uint8_t {
  kAlways,
  kUntied,
  kGate,   // use_gate
  kConv,   // use_short_conv
  kQRank,  // q_lora_rank given
  kNoQRank,
  kDoubleNorms,  // attn.double_norms
  kDoubleQNorm,  // both
};

struct TableRow {
  const char* name;
  std::initializer_list<Size> shape;
  When when = When::kAlways;
};

const TableRow kModel[] = {
    {"model.embeddings.weight", {Size::kVocabulary, Size::kHidden}},
    {"lm_head.weight", {Size::kVocabulary, Size::kHidden}, When::kUntied},
    {"model.norm.weight", {Size::kHidden}},
};

const TableRow kBlockTable[] = {
    {"attn_norm.weight", {Size::kHidden}},
    {"mlp_norm.weight", {Size::kHidden}},
    {"mlp.gate_proj.weight", {Size::kMlp, Size::kHidden}},
    {"mlp.up_proj.weight", {Size::kMlp, Size::kHidden}},
    {"mlp.down_proj.weight", {Size::kHidden, Size::kMlp}},
};

// Both delta-rule mixers.
const TableRow kDelta[] = {
    {"attn.q_proj.weight", {Size::kKey, Size::kHidden}},
    {"attn.k_proj.weight", {Size::kKey, Size::kHidden}},
    {"attn.v_proj.weight", {Size::kValue, Size::kHidden}},
    {"attn.q_conv1d.weight", {Size::kKey, Size::kOne, Size::kConv}, When::kConv},
    {"attn.k_conv1d.weight", {Size::kKey, Size::kOne, Size::kConv}, When::kConv},
    {"attn.v_conv1d.weight", {Size::kValue, Size::kOne, Size::kConv}, When::kConv},
    {"attn.b_proj.weight", {Size::kValueHeads, Size::kHidden}},
    {"attn.A_log", {Size::kValueHeads}},
    {"attn.o_norm.weight", {Size::kHeadValue}},
    {"attn.o_proj.weight", {Size::kHidden, Size::kValue}},
};

const TableRow kGatedDeltaNet[] = {
    {"attn.a_proj.weight", {Size::kValueHeads, Size::kHidden}},
    {"attn.dt_bias", {Size::kValueHeads}},
    {"attn.g_proj.weight", {Size::kValue, Size::kHidden}, When::kGate},
};

const TableRow kKda[] = {
    {"attn.f_proj.0.weight", {Size::kHeadValue, Size::kHidden}},
    {"attn.f_proj.1.weight", {Size::kDecay, Size::kHeadValue}},
    {"attn.dt_bias", {Size::kDecay}},
    {"attn.g_proj.0.weight", {Size::kHeadValue, Size::kHidden}},
    {"attn.g_proj.1.weight", {Size::kValue, Size::kHeadValue}},
    {"attn.g_proj.1.bias", {Size::kValue}},
};

const TableRow kMla[] = {
    {"attn.q_proj.weight", {Size::kQuery, Size::kHidden}, When::kNoQRank},
    {"attn.q_proj.0.weight", {Size::kQRank, Size::kHidden}, When::kQRank},
    {"attn.q_proj.1.weight", {Size::kQRank}, When::kQRank},
    {"attn.q_proj.2.weight", {Size::kQuery, Size::kQRank}, When::kQRank},
    {"attn.k_rope.weight", {Size::kRope, Size::kHidden}},
    {"attn.kv_proj.0.weight", {Size::kKvRank, Size::kHidden}},
    {"attn.kv_proj.1.weight", {Size::kKvRank}},
    {"attn.kv_proj.2.weight", {Size::kKeyValue, Size::kKvRank}},
    {"attn.q_second_norm.weight", {Size::kQRank}, When::kDoubleQNorm},
    {"attn.kv_second_norm.weight", {Size::kKvRank}, When::kDoubleNorms},
    {"attn.o_proj.weight", {Size::kHidden, Size::kOut}},
};

int64_t value_of(Size size, const ModelConfig& c) {
  const auto mla = [&c]() -> const MlaConfig& {
    DELTATRAIN_CHECK(c.attn.has_value(), "a model without attention");
    return *c.attn;
  };
  switch (size) {
    case Size::kVocabulary:
      return c.vocab_size;
    case Size::kHidden:
      return c.hidden_size;
    case Size::kMlp:
      return c.intermediate_size;
    case Size::kKey:
      return c.key_dim();
    case Size::kValue:
      return c.value_dim();
    case Size::kValueHeads:
      return c.num_v_heads;
    case Size::kHeadValue:
      return c.head_v_dim();
    case Size::kDecay:
      return c.num_v_heads * c.head_dim;
    case Size::kOne:
      return 1;
    case Size::kConv:
      return c.conv_size;
    case Size::kQRank:
      return mla().q_lora_rank.value_or(0);
    case Size::kKvRank:
      return mla().kv_lora_rank;
    case Size::kQuery:
      return mla().num_heads * mla().qk_head_dim();
    case Size::kRope:
      return mla().qk_rope_head_dim;
    case Size::kKeyValue:
      return mla().num_heads * (mla().qk_nope_head_dim + mla().v_head_dim);
    case Size::kOut:
      return mla().num_heads * mla().v_head_dim;
  }
  return 0;
}

bool applies(When when, const ModelConfig& c) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kUntied:
      return !c.tie_word_embeddings;
    case When::kGate:
      return c.use_gate;
    case When::kConv:
      return c.use_short_conv;
    case When::kQRank:
      return c.attn && c.attn->q_lora_rank.has_value();
    case When::kNoQRank:
      return c.attn && !c.attn->q_lora_rank.has_value();
    case When::kDoubleNorms:
      return c.attn && c.attn->double_norms;
    case When::kDoubleQNorm:
      return c.attn && c.attn->double_norms && c.attn->q_lora_rank.has_value();
  }
  return false;
}

}  // namespace

std::string layer_prefix(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

std::vector<formats::TensorSpec> model_parameters(const ModelConfig& config) {
  std::vector<formats::TensorSpec> specs;
  const auto add = [&](const std::string& prefix, std::span<const TableRow> rows) {
    for (const TableRow& row : rows) {
      if (!applies(row.when, config)) continue;
      formats::TensorSpec spec{prefix + row.name, DType::kF32, {}};
      for (const Size size : row.shape) spec.shape.append(value_of(size, config));
      specs.push_back(std::move(spec));
    }
  };
  add("", kModel);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    add(prefix, kBlockTable);
    if (config.is_mla_layer(layer)) {
      add(prefix, kMla);
      continue;
    }
    add(prefix, kDelta);
    if (config.family == ModelFamily::kKda) {
      add(prefix, kKda);
    } else {
      add(prefix, kGatedDeltaNet);
    }
  }
  std::sort(specs.begin(), specs.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return specs;
}

}  // namespace deltatrain::convert
