#include "checkpoint/model_folder.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "checkpoint/tensor_matching.h"

namespace deltatrain::checkpoint {

struct ModelFolder::Contents {
  std::filesystem::path folder;
  std::optional<CheckpointReader> native;
  std::optional<formats::SafetensorsFolder> foreign;
  std::vector<formats::TensorSpec> tensors;
  std::map<std::string, std::filesystem::path> files;
};

ModelFolder::ModelFolder(const std::filesystem::path& path)
    : contents_(std::make_unique<Contents>()) {
  Contents& c = *contents_;
  if (is_native_checkpoint(path)) {
    c.native.emplace(path);
    c.folder = c.native->folder();
    for (const TensorRecord& record : c.native->model()) {
      c.tensors.push_back({record.name, record.dtype, record.shape});
      c.files.emplace(record.name, record.file);
    }
    return;
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    throw FormatError(
        error_text(path.string(), "", "a folder with a model",
                   std::filesystem::exists(path, ignored) ? "a file" : "no such folder"));
  }
  if (!formats::has_safetensors(path)) {
    throw FormatError(error_text(
        path.string(), "", "a model: model.safetensors or its index, or a checkpoint of deltatrain",
        "neither"));
  }
  c.folder = path;
  c.foreign.emplace(path);
  for (const auto& [name, entry] : c.foreign->tensors()) {
    c.tensors.push_back({name, entry.tensor->dtype, entry.tensor->shape});
    c.files.emplace(name, entry.file->path());
  }
}

ModelFolder::ModelFolder(ModelFolder&&) noexcept = default;
ModelFolder& ModelFolder::operator=(ModelFolder&&) noexcept = default;
ModelFolder::~ModelFolder() = default;

const std::filesystem::path& ModelFolder::folder() const { return contents_->folder; }
bool ModelFolder::is_native() const { return contents_->native.has_value(); }

std::optional<int64_t> ModelFolder::step() const {
  if (!contents_->native) return std::nullopt;
  return contents_->native->state().step;
}

const std::vector<formats::TensorSpec>& ModelFolder::tensors() const { return contents_->tensors; }
bool ModelFolder::has(const std::string& name) const { return contents_->files.contains(name); }

const formats::StoredTensor& ModelFolder::tensor(const std::string& name) const {
  if (contents_->native) return contents_->native->model_tensor(name);
  return *contents_->foreign->at(name).tensor;
}

const std::filesystem::path& ModelFolder::file_of(const std::string& name) const {
  const auto it = contents_->files.find(name);
  return it == contents_->files.end() ? contents_->folder : it->second;
}

std::map<std::string, std::string> ModelFolder::resolve_ties(std::span<const TiedName> ties) const {
  std::map<std::string, std::string> stored_as;
  for (const formats::TensorSpec& spec : contents_->tensors)
    stored_as.emplace(spec.name, spec.name);
  for (const TiedName& tie : ties) {
    if (!has(tie.copy)) continue;
    if (!has(tie.original)) {
      stored_as.emplace(tie.original, tie.copy);
    } else {
      const formats::StoredTensor& copy = tensor(tie.copy);
      const formats::StoredTensor& original = tensor(tie.original);
      const bool equal =
          copy.dtype == original.dtype && copy.shape == original.shape &&
          std::memcmp(copy.bytes.data(), original.bytes.data(), original.bytes.size()) == 0;
      if (!equal) {
        throw FormatError(error_text(file_of(tie.copy).string(), tie.copy,
                                     "the values of " + tie.original + ", to which it is tied",
                                     "others"));
      }
    }
    stored_as.erase(tie.copy);
  }
  return stored_as;
}

void ModelFolder::read_all(std::span<const NamedTensor> parameters,
                           std::span<const TiedName> ties) const {
  const std::map<std::string, std::string> stored_as = resolve_ties(ties);
  std::vector<formats::TensorSpec> found;
  for (const auto& [name, stored] : stored_as) {
    const auto it = std::ranges::find(contents_->tensors, stored, &formats::TensorSpec::name);
    found.push_back({name, it->dtype, it->shape});
  }
  std::vector<formats::TensorSpec> wanted;
  for (const NamedTensor& named : parameters) {
    wanted.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
  }
  const TensorDifferences differences = compare_tensors(wanted, found, DTypeRule::kFloating);
  if (!differences.none()) {
    throw FormatError(error_text(contents_->folder.string(), "", "the tensors of the model",
                                 differences.summary()));
  }
  for (const NamedTensor& named : parameters) {
    const std::string& stored = stored_as.at(named.name);
    formats::read_tensor(tensor(stored), named.tensor, file_of(stored).string(), stored);
  }
}

}  // namespace deltatrain::checkpoint
