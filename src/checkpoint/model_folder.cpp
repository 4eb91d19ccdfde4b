#include "checkpoint/model_folder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/read_ahead.h"
#include "checkpoint/tensor_matching.h"
#include "formats/element_cast.h"

namespace deltatrain::checkpoint {

namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;

}  // namespace

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

void ModelFolder::stream(const std::vector<std::string>& names,
                         const CheckpointReader::PieceConsumer& consume) const {
  if (contents_->native) {
    contents_->native->stream_model(names, consume);
    return;
  }
  struct Listed {
    const std::string* name;
    FilePart part;
  };
  std::vector<Listed> list;
  for (const std::string& name : names) {
    const formats::SafetensorsFolder::Entry& entry = contents_->foreign->at(name);
    const std::span<const std::byte> bytes = entry.tensor->bytes;
    // Another writer may begin its data anywhere, so that the blocks of the file that are read end
    // within elements: such tensors come from the map.
    const auto width = static_cast<size_t>(dtype_bytes(entry.tensor->dtype));
    if (reinterpret_cast<uintptr_t>(bytes.data()) % width != 0) {
      read_ahead(bytes);
      for (size_t at = 0; at < bytes.size(); at += kPieceBytes)
        consume(name, static_cast<int64_t>(at),
                bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at)));
      continue;
    }
    const std::span<const std::byte> whole(entry.file->header_bytes().data(),
                                           static_cast<size_t>(entry.file->file_bytes()));
    list.push_back({&name, {&entry.file->path(), whole, bytes}});
  }
  std::sort(list.begin(), list.end(), [](const Listed& a, const Listed& b) {
    return std::pair(*a.part.path, a.part.bytes.data()) <
           std::pair(*b.part.path, b.part.bytes.data());
  });
  std::vector<FilePart> parts;
  for (const Listed& listed : list) parts.push_back(listed.part);
  read_parts(parts, [&](size_t i, size_t begin, std::span<const std::byte> piece) {
    consume(*list[i].name, static_cast<int64_t>(begin), piece);
  });
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
  struct Place {
    DType dtype;
    Tensor tensor;
  };
  std::vector<std::string> names;
  std::map<std::string, Place> places;
  for (const NamedTensor& named : parameters) {
    DELTATRAIN_CHECK(named.tensor.is_contiguous(), named.name);
    const std::string& stored = stored_as.at(named.name);
    names.push_back(stored);
    const auto spec = std::ranges::find(found, named.name, &formats::TensorSpec::name);
    places.emplace(stored, Place{spec->dtype, named.tensor});
  }
  stream(names,
         [&places](const std::string& name, int64_t begin, std::span<const std::byte> piece) {
           const Place& place = places.at(name);
           const int64_t width = dtype_bytes(place.dtype);
           const DType dtype = place.tensor.dtype();
           formats::cast_elements(
               place.dtype, piece.data(), dtype,
               static_cast<std::byte*>(place.tensor.raw()) + begin / width * dtype_bytes(dtype),
               static_cast<int64_t>(piece.size()) / width);
         });
}

}  // namespace deltatrain::checkpoint
