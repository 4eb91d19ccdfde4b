#include "model/weights.h"

#include <vector>

#include "base/files.h"
#include "config/hf_config.h"

namespace deltatrain {

ModelConfig read_model_config(const checkpoint::ModelFolder& folder) {
  const std::filesystem::path path = folder.folder() / "config.json";
  return model_config_from_hf(read_file(path, int64_t{1} << 20), path.string());
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
  std::vector<checkpoint::TiedName> ties;
  if (config.tie_word_embeddings) ties.push_back({"lm_head.weight", "model.embeddings.weight"});
  folder.read_all(tensors, ties);
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
