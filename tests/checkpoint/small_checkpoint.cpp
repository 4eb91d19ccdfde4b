#include "checkpoint/small_checkpoint.h"

#include <cstring>
#include <stdexcept>

namespace deltatrain::test {

using checkpoint::CheckpointReader;
using checkpoint::NamedTensor;

SmallCheckpoint::SmallCheckpoint(int64_t step) {
  state_.step = step;
  state_.consumed_samples = 8 * step;
  state_.extra["data"] = "{\"epoch\": 3, \"index\": " + std::to_string(step) + "}";
  state_.extra["recipe_digest"] = "\"abc\"";
  model_.push_back({"model.embeddings.weight", make(DType::kF32, {16, 8})});
  model_.push_back({"model.norm.weight", make(DType::kBF16, {8})});
  for (const NamedTensor& parameter : model_) {
    optimizer_.push_back(
        {checkpoint::exp_avg_name(parameter.name), make(DType::kF32, parameter.tensor.shape())});
    optimizer_.push_back(
        {checkpoint::exp_avg_sq_name(parameter.name), make(DType::kF32, parameter.tensor.shape())});
  }
}

Tensor SmallCheckpoint::make(DType dtype, const Shape& shape) {
  const auto bytes = static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype));
  memory_.push_back(std::make_unique<std::vector<char>>(bytes));
  for (size_t i = 0; i < bytes; ++i) {
    const auto value = static_cast<uint64_t>(state_.step) * 31 + memory_.size() * 7 + i;
    (*memory_.back())[i] = static_cast<char>(value % 64);  // finite in every dtype
  }
  return Tensor(memory_.back()->data(), dtype, shape);
}

checkpoint::SaveReport SmallCheckpoint::save(const std::filesystem::path& folder,
                                             checkpoint::SaveOptions options) const {
  options.companions.push_back({"config.json", "{\"model_type\": \"kda\"}\n"});
  return checkpoint::save_checkpoint(folder, state_, model_, optimizer_, options);
}

int64_t SmallCheckpoint::check(const std::filesystem::path& path) {
  const CheckpointReader reader(path);
  reader.verify_checksums();
  const SmallCheckpoint expected(reader.state().step);
  const auto require = [&reader](bool holds, const char* what) {
    if (!holds) throw std::runtime_error(reader.folder().string() + ": " + what);
  };
  require(reader.state().consumed_samples == expected.state_.consumed_samples, "consumed samples");
  require(reader.model().size() == expected.model_.size(), "number of parameters");
  require(reader.optimizer().size() == expected.optimizer_.size(), "number of optimizer tensors");
  for (const NamedTensor& want : expected.model_) {
    const auto& got = reader.model_tensor(want.name);
    require(std::memcmp(got.bytes.data(), want.tensor.raw(), got.bytes.size()) == 0,
            "model values");
  }
  for (const NamedTensor& want : expected.optimizer_) {
    const auto& got = reader.optimizer_tensor(want.name);
    require(std::memcmp(got.bytes.data(), want.tensor.raw(), got.bytes.size()) == 0,
            "optimizer values");
  }
  return reader.state().step;
}

}  // namespace deltatrain::test
