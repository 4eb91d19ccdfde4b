#include "convert/weight_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/read_ahead.h"
#include "checkpoint/model_folder.h"
#include "config/hf_config.h"
#include "convert/megatron_source.h"
#include "convert/parameter_table.h"
#include "formats/element_cast.h"

namespace deltatrain::convert {

namespace {

constexpr int64_t kMaxModelConfigBytes = 16 << 20;
constexpr int64_t kReadElements = int64_t{1} << 22;

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
    config_ =
        model_config_from_hf(read_file(config_path, kMaxModelConfigBytes), config_path.string());
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
    if (model_.is_native()) state_.emplace(path);
    if (state_) collect_moments();
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

  void release(const std::string& name) const override {
    drop_pages(tensor(name).bytes);
    if (!has_optimizer_) return;
    for (const std::string& moment :
         {checkpoint::exp_avg_name(name), checkpoint::exp_avg_sq_name(name)}) {
      const auto known = opened_.find(moment);
      if (known != opened_.end()) drop_pages(known->second->bytes);
    }
  }

  bool has_optimizer() const override { return has_optimizer_; }

  void read_state(StatePart part, const std::string& name, int64_t begin, int64_t count,
                  float* out) const override {
    DELTATRAIN_CHECK(has_optimizer_, name);
    const formats::StoredTensor& stored = part == StatePart::kMaster ? tensor(name)
                                          : part == StatePart::kExpAvg
                                              ? moment(checkpoint::exp_avg_name(name))
                                              : moment(checkpoint::exp_avg_sq_name(name));
    std::memcpy(out, stored.bytes.data() + begin * 4, static_cast<size_t>(count) * 4);
  }

  void stream(StatePart part, const std::vector<std::string>& names,
              const BlockConsumer& consume) const override {
    std::vector<std::string> stored;
    std::map<std::string, std::pair<std::string, DType>> meant;  // name and dtype by stored name
    for (const formats::TensorSpec& spec : tensors_) {
      if (std::ranges::find(names, spec.name) == names.end()) continue;
      stored.push_back(part == StatePart::kMaster   ? stored_as_.at(spec.name)
                       : part == StatePart::kExpAvg ? checkpoint::exp_avg_name(spec.name)
                                                    : checkpoint::exp_avg_sq_name(spec.name));
      meant[stored.back()] = {spec.name, spec.dtype};
    }
    std::vector<float> values;
    const auto take = [&](const std::string& name, int64_t begin,
                          std::span<const std::byte> piece) {
      const auto& [parameter, dtype] = meant.at(name);
      const int64_t width = dtype_bytes(dtype);
      values.resize(piece.size() / static_cast<size_t>(width));
      formats::cast_elements(dtype, piece.data(), DType::kF32, values.data(),
                             static_cast<int64_t>(values.size()));
      consume(parameter, begin / width, values);
    };
    if (part == StatePart::kMaster) {
      model_.stream(stored, take);
    } else {
      DELTATRAIN_CHECK(has_optimizer_, folder().string());
      state_->stream_optimizer(stored, take);
    }
  }

  TrainingCounters counters() const override {
    TrainingCounters counters{.iteration = step()};
    if (!state_) return counters;
    const checkpoint::CheckpointState& state = state_->state();
    const auto extra = [&state](const char* key) -> nlohmann::json {
      const auto found = state.extra.find(key);
      return found == state.extra.end() ? nlohmann::json() : nlohmann::json::parse(found->second);
    };
    // A conversion of weights alone leaves 0 there.
    if (state.consumed_samples > 0 || state.extra.contains("recipe"))
      counters.consumed_samples = state.consumed_samples;
    if (const auto steps = extra("completed_steps"); steps.is_number_integer())
      counters.completed_steps = steps.get<int64_t>();
    if (const auto batch = extra("global_batch_size"); batch.is_number_integer())
      counters.global_batch_size = batch.get<int64_t>();
    if (const auto recipe = extra("recipe"); recipe.is_string())
      counters.recipe = recipe.get<std::string>();
    return counters;
  }

 private:
  // Moments count as there only when all are, in f32 and beside f32 weights, as `train` saves them.
  void collect_moments() {
    if (state_->optimizer().size() != 2 * tensors_.size()) return;
    std::map<std::string, const checkpoint::TensorRecord*> records;
    for (const checkpoint::TensorRecord& record : state_->optimizer())
      records.emplace(record.name, &record);
    for (const formats::TensorSpec& spec : tensors_) {
      if (spec.dtype != DType::kF32) return;
      for (const std::string& name :
           {checkpoint::exp_avg_name(spec.name), checkpoint::exp_avg_sq_name(spec.name)}) {
        const auto found = records.find(name);
        if (found == records.end() || found->second->dtype != DType::kF32 ||
            found->second->shape != spec.shape)
          return;
      }
    }
    has_optimizer_ = true;
  }

  // Checksums are verified once per tensor, when it is first asked for.
  const formats::StoredTensor& tensor(const std::string& name) const {
    const auto known = opened_.find(name);
    if (known != opened_.end()) return *known->second;
    const formats::StoredTensor& stored = model_.tensor(stored_as_.at(name));
    if (!model_.is_native()) read_ahead(stored.bytes);
    opened_.emplace(name, &stored);
    return stored;
  }

  const formats::StoredTensor& moment(const std::string& name) const {
    const auto known = opened_.find(name);
    if (known != opened_.end()) return *known->second;
    const formats::StoredTensor& stored = state_->optimizer_tensor(name);
    opened_.emplace(name, &stored);
    return stored;
  }

  checkpoint::ModelFolder model_;
  ModelConfig config_;
  std::map<std::string, std::string> stored_as_;
  std::vector<formats::TensorSpec> tensors_;
  mutable std::map<std::string, const formats::StoredTensor*> opened_;
  std::optional<checkpoint::CheckpointReader> state_;  // of a native checkpoint
  bool has_optimizer_ = false;
};

}  // namespace

void WeightSource::read_state(StatePart, const std::string& name, int64_t, int64_t, float*) const {
  throw InternalError(name + ": state of an optimizer was asked of weights alone");
}

void WeightSource::stream(StatePart part, const std::vector<std::string>& names,
                          const BlockConsumer& consume) const {
  std::map<std::string, const formats::TensorSpec*> specs;
  for (const formats::TensorSpec& spec : tensors()) specs.emplace(spec.name, &spec);
  for (const std::string& name : names) {
    const formats::TensorSpec& spec = *specs.at(name);
    int64_t begin = 0;
    const auto pass_on = [&](const float* data, int64_t count) {
      consume(name, begin, {data, static_cast<size_t>(count)});
      begin += count;
    };
    if (has_optimizer()) {
      for_each_state_block(*this, part, spec, pass_on);
    } else {
      DELTATRAIN_CHECK(part == StatePart::kMaster, name);
      for_each_block(*this, spec, DType::kF32, [&](const void* data, int64_t bytes) {
        pass_on(static_cast<const float*>(data), bytes / 4);
      });
    }
  }
}

checkpoint::TensorDifferences WeightSource::differences() const {
  return checkpoint::compare_tensors(model_parameters(config()), tensors(),
                                     checkpoint::DTypeRule::kFloating);
}

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path,
                                           const OpenOptions& options) {
  const bool native = checkpoint::is_native_checkpoint(path);
  if (!native && !formats::has_safetensors(path) && find_megatron_checkpoint(path))
    return open_megatron(path, options);
  return std::make_unique<FolderSource>(path);
}

void for_each_block(const WeightSource& source, const formats::TensorSpec& spec, DType dtype,
                    const std::function<void(const void* data, int64_t bytes)>& consume) {
  const int64_t count = spec.shape.num_elements();
  const int64_t block = std::min(count, kReadElements);
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

void for_each_state_block(const WeightSource& source, StatePart part,
                          const formats::TensorSpec& spec,
                          const std::function<void(const float* data, int64_t count)>& consume) {
  const int64_t count = spec.shape.num_elements();
  const int64_t block = std::min(count, kReadElements);
  std::vector<float> values(static_cast<size_t>(block));
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t n = std::min(block, count - begin);
    source.read_state(part, spec.name, begin, n, values.data());
    consume(values.data(), n);
  }
  source.release(spec.name);
}

}  // namespace deltatrain::convert
