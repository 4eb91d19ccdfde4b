#include "convert/megatron_layout.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "convert/parameter_table.h"

namespace deltatrain::convert {

namespace {

constexpr int64_t kVocabularyMultiple = 128;

// One source of a Megatron tensor: all rows of a parameter, or with `rotary` its rows with the
// rotary part in Megatron's order.
enum class Order : uint8_t { kSame, kRotaryOfEachHead, kRotary };

struct Source {
  const char* name;
  Order order = Order::kSame;
};

// A Megatron tensor made of whole parameters, one under the other.
struct Row {
  const char* name;  // "norm" of the spec: see NormNames
  std::initializer_list<Source> sources;
};

// Both specs list the same matrices; only the norms before them have other names and places.
const Row kGdnMixer[] = {
    {"mixer.dt_bias", {{"attn.dt_bias"}}},
    {"mixer.A_log", {{"attn.A_log"}}},
    {"mixer.in_proj.weight",
     {{"attn.q_proj.weight"},
      {"attn.k_proj.weight"},
      {"attn.v_proj.weight"},
      {"attn.g_proj.weight"},
      {"attn.b_proj.weight"},
      {"attn.a_proj.weight"}}},
    {"mixer.conv1d.weight",
     {{"attn.q_conv1d.weight"}, {"attn.k_conv1d.weight"}, {"attn.v_conv1d.weight"}}},
    {"mixer.out_norm.weight", {{"attn.o_norm.weight"}}},
    {"mixer.out_proj.weight", {{"attn.o_proj.weight"}}},
};

const Row kKdaMixer[] = {
    {"mixer.A_log", {{"attn.A_log"}}},
    {"mixer.dt_bias", {{"attn.dt_bias"}}},
    {"mixer.in_proj.weight",
     {{"attn.q_proj.weight"},
      {"attn.k_proj.weight"},
      {"attn.v_proj.weight"},
      {"attn.f_proj.0.weight"},
      {"attn.g_proj.0.weight"},
      {"attn.b_proj.weight"}}},
    {"mixer.conv1d.weight",
     {{"attn.q_conv1d.weight"}, {"attn.k_conv1d.weight"}, {"attn.v_conv1d.weight"}}},
    {"mixer.gate_norm.weight", {}},
    {"mixer.f_b_proj.weight", {{"attn.f_proj.1.weight"}}},
    {"mixer.g_b_proj.weight", {{"attn.g_proj.1.weight"}}},
    {"mixer.g_b_proj.bias", {{"attn.g_proj.1.bias"}}},
    {"mixer.out_norm.weight", {{"attn.o_norm.weight"}}},
    {"mixer.out_proj.weight", {{"attn.o_proj.weight"}}},
};

const Row kAttention[] = {
    {"input_layernorm.weight", {{"attn_norm.weight"}}},
    {"self_attention.linear_proj.weight", {{"attn.o_proj.weight"}}},
    {"self_attention.linear_q_proj.weight", {{"attn.q_proj.weight", Order::kRotaryOfEachHead}}},
    {"self_attention.linear_q_down_proj.weight", {{"attn.q_proj.0.weight"}}},
    {"self_attention.linear_q_up_proj.layer_norm_weight", {{"attn.q_second_norm.weight"}}},
    {"self_attention.linear_q_up_proj.weight",
     {{"attn.q_proj.2.weight", Order::kRotaryOfEachHead}}},
    {"self_attention.linear_kv_down_proj.weight",
     {{"attn.kv_proj.0.weight"}, {"attn.k_rope.weight", Order::kRotary}}},
    {"self_attention.linear_kv_up_proj.layer_norm_weight", {{"attn.kv_second_norm.weight"}}},
    {"self_attention.linear_kv_up_proj.weight", {{"attn.kv_proj.2.weight"}}},
    {"self_attention.q_layernorm.weight", {{"attn.q_proj.1.weight"}}},
    {"self_attention.kv_layernorm.weight", {{"attn.kv_proj.1.weight"}}},
};

const Row kMlp[] = {
    {"mlp.linear_fc1.weight", {{"mlp.gate_proj.weight"}, {"mlp.up_proj.weight"}}},
    {"mlp.linear_fc2.weight", {{"mlp.down_proj.weight"}}},
};

class TableBuilder {
 public:
  TableBuilder(const ModelConfig& config, LayerSpec spec, int64_t vocabulary_rows)
      : config_(config), spec_(spec), vocabulary_rows_(vocabulary_rows) {
    for (const formats::TensorSpec& parameter : model_parameters(config))
      shapes_.emplace(parameter.name, parameter.shape);
  }

  std::vector<MegatronTensor> build() {
    add_vocabulary("embedding.word_embeddings.weight", "model.embeddings.weight");
    for (int64_t block = 0; block < config_.num_hidden_layers; ++block) {
      const std::string from = layer_prefix(block);
      const std::string mixer = "decoder.layers." + std::to_string(2 * block) + ".";
      const std::string mlp = "decoder.layers." + std::to_string(2 * block + 1) + ".";
      if (config_.is_mla_layer(block)) {
        add_all(mixer, from, kAttention);
      } else {
        add_mixer(mixer, from);
      }
      if (spec_ == LayerSpec::kTe) {
        add(mlp + "mlp.linear_fc1.layer_norm_weight", {{from + "mlp_norm.weight"}});
      } else {
        add(mlp + "pre_mlp_layernorm.weight", {{from + "mlp_norm.weight"}});
      }
      add_all(mlp, from, kMlp);
    }
    add("decoder.final_norm.weight", {{"model.norm.weight"}});
    if (!config_.tie_word_embeddings) add_vocabulary("output_layer.weight", "lm_head.weight");
    return std::move(tensors_);
  }

 private:
  struct FullSource {
    std::string name;
    Order order = Order::kSame;
  };

  void add_mixer(const std::string& to, const std::string& from) {
    const bool kda = config_.family == ModelFamily::kKda;
    const std::span<const Row> rows =
        kda ? std::span<const Row>(kKdaMixer) : std::span<const Row>(kGdnMixer);
    for (const Row& row : rows) {
      const std::string name = row.name;
      if (name == "mixer.gate_norm.weight") {
        if (spec_ == LayerSpec::kTe) add_ones(to + name, config_.hidden_size);
        continue;
      }
      if (name == "mixer.in_proj.weight" && spec_ == LayerSpec::kTe)
        add(to + "mixer.in_proj.layer_norm_weight", {{from + "attn_norm.weight"}});
      add_row(to, from, row);
      if (kda && name == "mixer.A_log") tensors_.back().rows.shape = {1, 1, config_.num_v_heads, 1};
    }
    if (spec_ == LayerSpec::kNoTe) add(to + "norm.weight", {{from + "attn_norm.weight"}});
  }

  void add_all(const std::string& to, const std::string& from, std::span<const Row> rows) {
    for (const Row& row : rows) {
      // Latent attention has either one query projection or the three of a rank, and second norms
      // under Transformer Engine alone.
      if (shapes_.contains(from + row.sources.begin()->name)) add_row(to, from, row);
    }
  }

  void add_row(const std::string& to, const std::string& from, const Row& row) {
    std::vector<FullSource> sources;
    for (const Source& source : row.sources) sources.push_back({from + source.name, source.order});
    add(to + row.name, sources);
  }

  void add(const std::string& name, const std::vector<FullSource>& sources) {
    MegatronTensor tensor;
    tensor.rows.name = name;
    const Shape& first = shapes_.at(sources.front().name);
    tensor.rows.row_elements = divide_exactly(first.num_elements(), first[0]);
    int64_t rows = 0;
    for (const FullSource& source : sources) {
      append_runs(tensor.rows.runs, source);
      rows += shapes_.at(source.name)[0];
    }
    tensor.rows.shape.append(rows);
    for (int axis = 1; axis < first.rank(); ++axis) tensor.rows.shape.append(first[axis]);
    tensors_.push_back(std::move(tensor));
  }

  void add_ones(const std::string& name, int64_t size) {
    tensors_.push_back({{name, {size}, 1, {{"", 0, size}}}, Unmapped::kOnes});
  }

  void add_vocabulary(const std::string& name, const std::string& source) {
    DELTATRAIN_CHECK(vocabulary_rows_ >= config_.vocab_size, std::to_string(vocabulary_rows_));
    MegatronTensor tensor;
    tensor.rows = {name,
                   {vocabulary_rows_, config_.hidden_size},
                   config_.hidden_size,
                   {{source, 0, config_.vocab_size}}};
    if (vocabulary_rows_ > config_.vocab_size)
      tensor.rows.runs.push_back({"", 0, vocabulary_rows_ - config_.vocab_size});
    tensors_.push_back(std::move(tensor));
  }

  // Megatron turns neighbouring channels, 2j and 2j + 1, by one angle; FLA channels j and d/2 + j.
  static void append_rotary(std::vector<RowRun>& runs, const std::string& name, int64_t first,
                            int64_t width) {
    for (int64_t j = 0; j < width / 2; ++j) {
      runs.push_back({name, first + j, 1});
      runs.push_back({name, first + width / 2 + j, 1});
    }
  }

  void append_runs(std::vector<RowRun>& runs, const FullSource& source) const {
    const int64_t rows = shapes_.at(source.name)[0];
    if (source.order == Order::kSame) {
      runs.push_back({source.name, 0, rows});
      return;
    }
    const MlaConfig& mla = *config_.attn;
    const int64_t rope = mla.qk_rope_head_dim;
    if (source.order == Order::kRotary) {
      append_rotary(runs, source.name, 0, rope);
      return;
    }
    for (int64_t head = 0; head < mla.num_heads; ++head) {
      const int64_t first = head * mla.qk_head_dim();
      runs.push_back({source.name, first, mla.qk_nope_head_dim});
      append_rotary(runs, source.name, first + mla.qk_nope_head_dim, rope);
    }
  }

  const ModelConfig& config_;
  LayerSpec spec_;
  int64_t vocabulary_rows_;
  std::map<std::string, Shape> shapes_;
  std::vector<MegatronTensor> tensors_;
};

}  // namespace

std::vector<MegatronTensor> megatron_tensors(const ModelConfig& config, LayerSpec spec,
                                             int64_t vocabulary_rows) {
  return TableBuilder(config, spec, vocabulary_rows).build();
}

std::map<std::string, TensorRows> rows_in_megatron(const ModelConfig& config,
                                                   const std::vector<MegatronTensor>& tensors) {
  struct Piece {
    int64_t row = 0;  // of the Hugging Face tensor
    RowRun run;       // of the Megatron tensor
  };
  std::map<std::string, std::vector<Piece>> pieces;
  for (const MegatronTensor& tensor : tensors) {
    int64_t row = 0;
    for (const RowRun& run : tensor.rows.runs) {
      if (!run.name.empty())
        pieces[run.name].push_back({run.first_row, {tensor.rows.name, row, run.num_rows}});
      row += run.num_rows;
    }
  }
  std::map<std::string, TensorRows> result;
  for (const formats::TensorSpec& spec : model_parameters(config)) {
    std::vector<Piece>& of_tensor = pieces[spec.name];
    std::sort(of_tensor.begin(), of_tensor.end(),
              [](const Piece& a, const Piece& b) { return a.row < b.row; });
    TensorRows rows{
        spec.name, spec.shape, divide_exactly(spec.shape.num_elements(), spec.shape[0]), {}};
    int64_t next = 0;
    for (const Piece& piece : of_tensor) {
      DELTATRAIN_CHECK(piece.row == next, spec.name);
      next += piece.run.num_rows;
      rows.runs.push_back(piece.run);
    }
    DELTATRAIN_CHECK(next == spec.shape[0], spec.name);
    result.emplace(spec.name, std::move(rows));
  }
  return result;
}

int64_t padded_vocabulary(int64_t vocab_size) { return round_up(vocab_size, kVocabularyMultiple); }

std::string find_megatron_problem(const ModelConfig& config, LayerSpec spec) {
  if (config.attn && spec == LayerSpec::kTe && !config.attn->double_norms) {
    return "latent attention under Transformer Engine applies the norms of its ranks twice, which "
           "this model doesn't; use the no-te spec";
  }
  if (config.attn && spec == LayerSpec::kNoTe && config.attn->double_norms) {
    return "latent attention whose rank norms are applied twice, which it has under Transformer "
           "Engine alone";
  }
  if (!config.use_short_conv) return "a mixer without short convolutions";
  if (config.family == ModelFamily::kGatedDeltaNet && !config.use_gate)
    return "a mixer without an output gate";
  if (config.allow_neg_eigval) return "beta in (0, 2)";
  if (config.lower_bound) return "a decay with a lower bound";
  return "";
}

bool megatron_decays(const Shape& shape) { return shape.rank() != 1; }

const char* layer_spec_name(LayerSpec spec) { return spec == LayerSpec::kTe ? "te" : "no-te"; }

}  // namespace deltatrain::convert
