#include "convert/weight_source.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/model_folder.h"
#include "config/hf_config.h"
#include "formats/element_cast.h"

namespace deltatrain::convert {

namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kBlockElements = int64_t{1} << 22;

const std::vector<checkpoint::TiedName>& tied_head() {
  static const std::vector<checkpoint::TiedName> ties = {
      {"lm_head.weight", "model.embeddings.weight"}};
  return ties;
}

// KDA of FLA 0.4.0 and older had gates per key head. With as many key as value heads that is the
// same.
void refuse_gates_per_key_head(const ModelConfig& config,
                               const std::vector<formats::TensorSpec>& tensors,
                               const std::string& where) {
  if (config.family != ModelFamily::kKda || config.num_v_heads == config.num_heads) return;
  for (const formats::TensorSpec& spec : tensors) {
    if (spec.name.ends_with(".attn.A_log") && spec.shape.num_elements() == config.num_heads) {
      throw UnsupportedError(error_text(
          where, spec.name, "one value per value head (" + std::to_string(config.num_v_heads) + ")",
          std::to_string(config.num_heads) + ", one per key head: KDA weights of FLA 0.4.0 or "
                                             "older with more value than key heads are another "
                                             "model and cannot be converted"));
    }
  }
}

class FolderSource : public WeightSource {
 public:
  explicit FolderSource(const std::filesystem::path& path) : model_(path) {
    const std::filesystem::path config_path = model_.folder() / "config.json";
    config_ = model_config_from_hf(read_file(config_path, kMaxConfigBytes), config_path.string());
    if (config_.tie_word_embeddings) {
      stored_as_ = model_.resolve_ties(tied_head());
    } else {
      for (const formats::TensorSpec& spec : model_.tensors())
        stored_as_.emplace(spec.name, spec.name);
    }
    std::map<std::string, const formats::TensorSpec*> stored;
    for (const formats::TensorSpec& spec : model_.tensors()) stored.emplace(spec.name, &spec);
    for (const auto& [name, stored_name] : stored_as_) {
      const formats::TensorSpec& spec = *stored.at(stored_name);
      tensors_.push_back({name, spec.dtype, spec.shape});
    }
    refuse_gates_per_key_head(config_, tensors_, path.string());
  }

  std::string describe() const override {
    return model_.is_native() ? "checkpoint of step " + std::to_string(step())
                              : "Hugging Face folder";
  }
  int64_t step() const override { return model_.step().value_or(0); }
  const std::filesystem::path& folder() const override { return model_.folder(); }
  const ModelConfig& config() const override { return config_; }
  const std::vector<formats::TensorSpec>& tensors() const override { return tensors_; }

  void read(const std::string& name, int64_t begin, int64_t count, void* out) const override {
    const formats::StoredTensor& stored = tensor(name);
    const int64_t width = dtype_bytes(stored.dtype);
    std::memcpy(out, stored.bytes.data() + begin * width, static_cast<size_t>(count * width));
  }

  void release(const std::string& name) const override { drop_pages(tensor(name).bytes); }

 private:
  // Checksums are verified once per tensor, when it is first asked for.
  const formats::StoredTensor& tensor(const std::string& name) const {
    const auto known = opened_.find(name);
    if (known != opened_.end()) return *known->second;
    const formats::StoredTensor& stored = model_.tensor(stored_as_.at(name));
    opened_.emplace(name, &stored);
    return stored;
  }

  checkpoint::ModelFolder model_;
  ModelConfig config_;
  std::map<std::string, std::string> stored_as_;
  std::vector<formats::TensorSpec> tensors_;
  mutable std::map<std::string, const formats::StoredTensor*> opened_;
};

}  // namespace

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path) {
  return std::make_unique<FolderSource>(path);
}

void for_each_block(const WeightSource& source, const formats::TensorSpec& spec, DType dtype,
                    const std::function<void(const void* data, int64_t bytes)>& consume) {
  const int64_t count = spec.shape.num_elements();
  const int64_t block = std::min(count, kBlockElements);
  std::vector<std::byte> stored(static_cast<size_t>(block * dtype_bytes(spec.dtype)));
  std::vector<std::byte> converted(
      spec.dtype == dtype ? 0 : static_cast<size_t>(block * dtype_bytes(dtype)));
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t n = std::min(block, count - begin);
    source.read(spec.name, begin, n, stored.data());
    if (spec.dtype == dtype) {
      consume(stored.data(), n * dtype_bytes(dtype));
    } else {
      formats::cast_elements(spec.dtype, stored.data(), dtype, converted.data(), n);
      consume(converted.data(), n * dtype_bytes(dtype));
    }
  }
  source.release(spec.name);
}

}  // namespace deltatrain::convert
