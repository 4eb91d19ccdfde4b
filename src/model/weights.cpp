#include "model/weights.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/tensor_matching.h"
#include "config/hf_config.h"
#include "model/model.h"

namespace deltatrain {

namespace {

std::vector<checkpoint::TiedName> tied_names(const ModelConfig& config) {
  if (!config.tie_word_embeddings) return {};
  return {{"lm_head.weight", "model.embeddings.weight"}};
}

// Sizes that one axis of a tensor shows by itself.
void require_same_sizes(const ModelConfig& config, const std::map<std::string, Shape>& stored,
                        const std::string& where) {
  const auto require = [&where](const char* key, int64_t claimed, int64_t found,
                                const std::string& tensor) {
    if (claimed == found) return;
    throw ConfigError(error_text(where, key, std::to_string(found) + ", as " + tensor + " has",
                                 std::to_string(claimed)));
  };
  const std::string layer = "model.layers.";
  int64_t layers = 0;
  for (const auto& [name, shape] : stored) {
    if (name.starts_with(layer) && name.ends_with(".attn_norm.weight")) ++layers;
  }
  const struct {
    const char* key;
    int64_t claimed;
    std::string tensor;
    int axis;
  } sizes[] = {
      {"vocab_size", config.vocab_size, "model.embeddings.weight", 0},
      {"hidden_size", config.hidden_size, "model.embeddings.weight", 1},
      {"intermediate_size", config.intermediate_size, layer + "0.mlp.gate_proj.weight", 0}};
  for (const auto& size : sizes) {
    const auto found = stored.find(size.tensor);
    if (found != stored.end() && found->second.rank() == 2)
      require(size.key, size.claimed, found->second[size.axis], size.tensor);
  }
  if (layers > 0) require("num_hidden_layers", config.num_hidden_layers, layers, "the file");
}

void require_tensors_of(const ModelConfig& config, const checkpoint::ModelFolder& folder,
                        const std::string& config_path) {
  std::map<std::string, formats::TensorSpec> stored;
  for (const formats::TensorSpec& spec : folder.tensors()) stored.emplace(spec.name, spec);
  std::vector<formats::TensorSpec> wanted, found;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, stored_as] : folder.resolve_ties(tied_names(config))) {
    const formats::TensorSpec& spec = stored.at(stored_as);
    found.push_back({name, spec.dtype, spec.shape});
    shapes.emplace(name, spec.shape);
  }
  require_same_sizes(config, shapes, config_path);
  const Model model(config);
  for (const layers::ParameterInfo& info : model.parameters().infos())
    wanted.push_back({info.name, DType::kF32, info.checkpoint_shape});
  const auto differences =
      checkpoint::compare_tensors(wanted, found, checkpoint::DTypeRule::kFloating);
  if (!differences.none())
    throw FormatError(error_text(folder.folder().string(), "", "the tensors of the model",
                                 differences.summary()));
}

}  // namespace

ModelConfig read_model_config(const checkpoint::ModelFolder& folder) {
  const std::filesystem::path path = folder.folder() / "config.json";
  const ModelConfig config = model_config_from_hf(read_file(path, int64_t{1} << 20), path.string());
  require_tensors_of(config, folder, path.string());
  return config;
}

void load_weights(const Context& context, const ModelConfig& config,
                  const checkpoint::ModelFolder& folder, layers::ParameterStore& store) {
  const Tensor flat = store.flat_master();
  const bool on_host = context.device->kind() != DeviceKind::kCuda;
  // A device gets its weights through one host block laid out like its own.
  const Buffer staging =
      on_host ? Buffer() : Buffer(host_memory(), static_cast<size_t>(flat.num_bytes()));
  std::vector<checkpoint::NamedTensor> tensors;
  for (const layers::ParameterInfo& info : store.infos()) {
    tensors.push_back(
        {info.name,
         on_host ? store.master(info)
                 : staging.tensor(flat.dtype(), info.checkpoint_shape,
                                  static_cast<size_t>(info.offset * dtype_bytes(flat.dtype())))});
  }
  folder.read_all(tensors, tied_names(config));
  if (!on_host) {
    for (const layers::ParameterInfo& info : store.infos()) {
      const auto at = static_cast<size_t>(info.offset * dtype_bytes(flat.dtype()));
      const auto bytes = static_cast<size_t>(info.num_elements() * dtype_bytes(flat.dtype()));
      context.device->copy_to_device(store.master(info).raw(),
                                     static_cast<const char*>(staging.data()) + at, bytes);
    }
  }
  store.refresh_compute(context);
}

}  // namespace deltatrain
