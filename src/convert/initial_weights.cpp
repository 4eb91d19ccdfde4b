#include "convert/initial_weights.h"

#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "convert/parameter_table.h"

namespace deltatrain::convert {

namespace {

using Sizes = std::map<std::string, int64_t>;  // elements by name

Sizes sizes_of(const ModelConfig& config) {
  Sizes sizes;
  for (const formats::TensorSpec& spec : model_parameters(config)) {
    sizes.emplace(spec.name, spec.shape.num_elements());
  }
  return sizes;
}

// Tensors of a block's mixer in the order in which FLA's constructors register them. Those that the
// model doesn't have (no gate, no convolution, ...) are passed over.
const std::vector<const char*>& registered(const ModelConfig& config, int64_t layer) {
  static const std::vector<const char*> kGdn = {
      "q_proj.weight", "k_proj.weight", "v_proj.weight",   "a_proj.weight",   "b_proj.weight",
      "A_log",         "dt_bias",       "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight",
      "g_proj.weight", "o_norm.weight", "o_proj.weight"};
  static const std::vector<const char*> kKda = {
      "q_proj.weight",   "k_proj.weight",   "v_proj.weight",   "q_conv1d.weight",
      "k_conv1d.weight", "v_conv1d.weight", "f_proj.0.weight", "f_proj.1.weight",
      "b_proj.weight",   "A_log",           "dt_bias",         "g_proj.0.weight",
      "g_proj.1.weight", "g_proj.1.bias",   "o_norm.weight",   "o_proj.weight"};
  static const std::vector<const char*> kMla = {
      "q_proj.weight",         "q_proj.0.weight",  "q_proj.1.weight",  "q_second_norm.weight",
      "q_proj.2.weight",       "k_rope.weight",    "kv_proj.0.weight", "kv_proj.1.weight",
      "kv_second_norm.weight", "kv_proj.2.weight", "o_proj.weight"};
  if (config.is_mla_layer(layer)) return kMla;
  return config.family == ModelFamily::kKda ? kKda : kGdn;
}

bool is_norm(const std::string& name) {
  return name.ends_with("norm.weight") || name.ends_with("q_proj.1.weight") ||
         name.ends_with("kv_proj.1.weight");
}

bool is_gate(const std::string& name) {
  return name.ends_with(".A_log") || name.ends_with(".dt_bias");
}

// FLA's A: uniform from 0 in GDN, from 1 in KDA.
double lowest_a(const ModelConfig& config) { return config.family == ModelFamily::kKda ? 1 : 0; }

std::vector<float> draw_a_log(TorchGenerator& generator, int64_t count, double low) {
  std::vector<float> values(static_cast<size_t>(count));
  generator.uniform(values.data(), count, low, 16);
  for (float& value : values) value = static_cast<float>(std::log(static_cast<double>(value)));
  return values;
}

// The inverse softplus of a step that is log-uniform in [1e-3, 1e-1]; every operation rounds to
// f32.
std::vector<float> draw_dt_bias(TorchGenerator& generator, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  generator.uniform(values.data(), count, 0, 1);
  for (float& value : values) {
    const float scaled = value * static_cast<float>(4.605170185988092);
    const float exponent = scaled + static_cast<float>(-6.907755278982137);
    const float step = std::max(static_cast<float>(std::exp(static_cast<double>(exponent))), 1e-4F);
    const auto falling = static_cast<float>(std::expm1(-static_cast<double>(step)));
    const auto logarithm = static_cast<float>(std::log(-static_cast<double>(falling)));
    value = step + logarithm;
  }
  return values;
}

std::vector<float> constant(int64_t count, float value) {
  return std::vector<float>(static_cast<size_t>(count), value);
}

std::vector<float> draw_normal(TorchGenerator& generator, int64_t count, double std) {
  std::vector<float> values(static_cast<size_t>(count));
  generator.normal(values.data(), count, 0, std);
  return values;
}

// Calls `visit` with each name of the model that exists, block by block.
template <class Visit>
void for_each_block(const ModelConfig& config, const Sizes& sizes, Visit&& visit) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    visit(layer, prefix, [&](const auto& each) {
      each(prefix + "attn_norm.weight");
      for (const char* name : registered(config, layer)) {
        const std::string full = prefix + "attn." + name;
        if (sizes.contains(full)) each(full);
      }
      each(prefix + "mlp_norm.weight");
      for (const char* name :
           {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}) {
        each(prefix + name);
      }
    });
  }
}

}  // namespace

void draw_fla_weights(const ModelConfig& config, TorchGenerator& generator,
                      const WeightConsumer& consume) {
  const Sizes sizes = sizes_of(config);
  const std::string embedding = "model.embeddings.weight";
  const bool draws_a = !(config.family == ModelFamily::kKda && config.safe_gate);

  // Construction: torch's default draws, which the second pass replaces. One output per element;
  // norms draw nothing, and a bias is drawn here only.
  generator.discard_normal(sizes.at(embedding));
  for_each_block(config, sizes, [&](int64_t, const std::string&, const auto& names) {
    names([&](const std::string& name) {
      if (is_norm(name) || (name.ends_with(".A_log") && !draws_a)) return;
      generator.discard(sizes.at(name));
    });
  });

  // Initialisation proper, children before parents: the mixer's own A_log and dt_bias come after
  // its layers.
  consume(embedding, draw_normal(generator, sizes.at(embedding), config.initializer_range));
  for_each_block(config, sizes, [&](int64_t, const std::string& prefix, const auto& names) {
    const auto draw_gates = [&] {
      const std::string a_log = prefix + "attn.A_log";
      const std::string dt_bias = prefix + "attn.dt_bias";
      if (!sizes.contains(a_log)) return;
      const int64_t count = sizes.at(a_log);
      consume(a_log, draws_a ? draw_a_log(generator, count, lowest_a(config)) : constant(count, 0));
      consume(dt_bias, draw_dt_bias(generator, sizes.at(dt_bias)));
    };
    names([&](const std::string& name) {
      if (is_gate(name)) return;
      if (name.ends_with("mlp_norm.weight")) draw_gates();
      if (is_norm(name)) {
        consume(name, constant(sizes.at(name), 1));
      } else if (name.ends_with(".bias")) {
        consume(name, constant(sizes.at(name), 0));
      } else {
        consume(name, draw_normal(generator, sizes.at(name), config.initializer_range));
      }
    });
  });
  consume("model.norm.weight", constant(config.hidden_size, 1));

  // The head is built and initialised whether or not it is tied to the embedding afterwards.
  generator.discard(sizes.at(embedding));
  if (config.tie_word_embeddings) {
    generator.discard_normal(sizes.at(embedding));
  } else {
    consume("lm_head.weight",
            draw_normal(generator, sizes.at(embedding), config.initializer_range));
  }
}

void draw_megatron_weights(const ModelConfig& config, TorchGenerator& generator,
                           const WeightConsumer& consume) {
  for (const formats::TensorSpec& spec : model_parameters(config)) {
    const int64_t count = spec.shape.num_elements();
    const std::string& name = spec.name;
    if (is_norm(name)) {
      consume(name, constant(count, 1));
    } else if (name.ends_with(".A_log")) {
      consume(name, draw_a_log(generator, count, 1));
    } else if (name.ends_with(".dt_bias")) {
      consume(name, draw_dt_bias(generator, count));
    } else if (name.ends_with("conv1d.weight") || name.ends_with("f_proj.1.weight") ||
               name.find(".g_proj.1.") != std::string::npos) {
      const bool convolution = name.ends_with("conv1d.weight");
      const auto fan_in = static_cast<double>(convolution ? config.conv_size : config.head_v_dim());
      std::vector<float> values(static_cast<size_t>(count));
      generator.uniform(values.data(), count, -1 / std::sqrt(fan_in), 1 / std::sqrt(fan_in));
      consume(name, std::move(values));
    } else {
      consume(name, draw_normal(generator, count, config.initializer_range));
    }
  }
}

namespace {

class MemorySource : public WeightSource {
 public:
  explicit MemorySource(const ModelConfig& config)
      : config_(config), tensors_(model_parameters(config)) {}

  void add(const std::string& name, std::vector<float>&& values) {
    values_[name] = std::move(values);
  }

  std::string describe() const override { return "initial weights"; }
  int64_t step() const override { return 0; }
  const std::filesystem::path& folder() const override { return folder_; }
  const ModelConfig& config() const override { return config_; }
  const std::vector<formats::TensorSpec>& tensors() const override { return tensors_; }
  void read(const std::string& name, int64_t begin, int64_t count, void* out) const override {
    const std::vector<float>& values = values_.at(name);
    DELTATRAIN_CHECK(begin + count <= static_cast<int64_t>(values.size()), name);
    std::memcpy(out, values.data() + begin, static_cast<size_t>(count) * sizeof(float));
  }
  void release(const std::string&) const override {}

 private:
  ModelConfig config_;
  std::filesystem::path folder_;
  std::vector<formats::TensorSpec> tensors_;
  std::map<std::string, std::vector<float>> values_;
};

}  // namespace

std::unique_ptr<WeightSource> make_initial_weights(const ModelConfig& config, InitLike like,
                                                   uint64_t seed) {
  auto source = std::make_unique<MemorySource>(config);
  TorchGenerator generator(seed);
  const auto draw = like == InitLike::kFla ? draw_fla_weights : draw_megatron_weights;
  draw(config, generator, [&source](const std::string& name, std::vector<float>&& values) {
    source->add(name, std::move(values));
  });
  return source;
}

}  // namespace deltatrain::convert
