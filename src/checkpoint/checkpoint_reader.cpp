#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/read_ahead.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"
#include "checkpoint/state_file.h"
#include "checkpoint/tensor_matching.h"

namespace deltatrain::checkpoint {

namespace {

constexpr int64_t kMaxStateBytes = 256 << 20;
constexpr size_t kPieceBytes = size_t{8} << 20;   // digested and copied at a time
constexpr size_t kAheadBytes = size_t{64} << 20;  // asked of the disk beyond that

formats::TensorSpec spec_of(const TensorRecord& record) {
  return {record.name, record.dtype, record.shape};
}

// A group's files, opened, with each record's bytes.
struct Group {
  std::vector<TensorRecord> records;  // by name, with full paths
  std::vector<std::unique_ptr<formats::SafetensorsFile>> files;
  std::map<std::string, const formats::StoredTensor*> stored;

  const TensorRecord* find(const std::string& name) const {
    const auto it = std::lower_bound(
        records.begin(), records.end(), name,
        [](const TensorRecord& record, const std::string& wanted) { return record.name < wanted; });
    return it == records.end() || it->name != name ? nullptr : &*it;
  }
};

void check_bytes(const std::filesystem::path& path, const internal::FileRecord& record,
                 int64_t bytes, const void* checked, size_t checked_bytes) {
  if (bytes != record.bytes) {
    throw FormatError(error_text(path.string(), "",
                                 std::to_string(record.bytes) + " bytes as state.json says",
                                 std::to_string(bytes)));
  }
  const uint64_t checksum = xxh3_64(checked, checked_bytes);
  if (checksum != record.checksum) {
    throw FormatError(
        error_text(path.string(), "checksum", hex64(record.checksum), hex64(checksum)));
  }
}

void require_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw FormatError(error_text(path.string(), "", "a file, as state.json says", "none"));
  }
}

Group open_group(const std::filesystem::path& folder, const internal::TensorGroup& listed) {
  Group group;
  std::vector<formats::TensorSpec> found;
  std::map<std::string, std::string> file_of;
  for (const internal::FileRecord& record : listed.files) {
    const auto path = folder / record.name;
    require_file(path);
    if (!record.name.ends_with(".safetensors")) {  // the index of a split group
      const std::string text = read_file(path);
      check_bytes(path, record, static_cast<int64_t>(text.size()), text.data(), text.size());
      continue;
    }
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    if (size != record.bytes) check_bytes(path, record, size, nullptr, 0);
    auto file = std::make_unique<formats::SafetensorsFile>(path);
    check_bytes(path, record, file->file_bytes(), file->header_bytes().data(),
                file->header_bytes().size());
    for (const auto& [name, tensor] : file->tensors()) {
      if (!group.stored.emplace(name, &tensor).second) {
        throw FormatError(error_text(path.string(), name, "a tensor in one file", "in two"));
      }
      found.push_back({name, tensor.dtype, tensor.shape});
      file_of.emplace(name, record.name);
    }
    group.files.push_back(std::move(file));
  }
  std::vector<formats::TensorSpec> wanted;
  for (const TensorRecord& record : listed.tensors) wanted.push_back(spec_of(record));
  const TensorDifferences differences = compare_tensors(wanted, found, DTypeRule::kEqual);
  if (!differences.none()) {
    throw FormatError(
        error_text(folder.string(), "", "the tensors of state.json", differences.summary()));
  }
  for (const TensorRecord& record : listed.tensors) {
    if (file_of[record.name] != record.file) {
      throw FormatError(error_text((folder / record.file).string(), record.name,
                                   "this tensor, as state.json says",
                                   "it in " + file_of[record.name]));
    }
    group.records.push_back(record);
    group.records.back().file = folder / record.file;
  }
  return group;
}

void require_checksum(const TensorRecord& record, uint64_t checksum) {
  if (checksum != record.checksum) {
    throw FormatError(error_text(record.file.string(), record.name + ": checksum",
                                 hex64(record.checksum), hex64(checksum)));
  }
}

const formats::StoredTensor& verified(const std::filesystem::path& folder, const Group& group,
                                      const std::string& name) {
  const TensorRecord* record = group.find(name);
  if (record == nullptr)
    throw FormatError(error_text(folder.string(), name, "this tensor", "none"));
  const formats::StoredTensor& stored = *group.stored.at(name);
  read_ahead(stored.bytes);
  const uint64_t checksum = xxh3_64(stored.bytes.data(), stored.bytes.size());
  require_checksum(*record, checksum);
  return stored;
}

// What of a tensor is asked for before it is needed.
std::span<const std::byte> beginning(const formats::StoredTensor& stored) {
  return stored.bytes.first(std::min(stored.bytes.size(), kAheadBytes));
}

void read(const std::filesystem::path& folder, const Group& group, const std::string& name,
          const Tensor& out) {
  DELTATRAIN_CHECK(out.is_contiguous(), name);
  const TensorRecord* record = group.find(name);
  if (record != nullptr && (record->dtype != out.dtype() || record->shape != out.shape())) {
    throw FormatError(
        error_text(record->file.string(), name, describe(out),
                   std::string(dtype_name(record->dtype)) + " " + to_string(record->shape)));
  }
  if (record == nullptr)
    throw FormatError(error_text(folder.string(), name, "this tensor", "none"));
  // Piece by piece, digest and copy while the disk reads on; what is done with takes no memory.
  const formats::StoredTensor& stored = *group.stored.at(name);
  const std::span<const std::byte> bytes = stored.bytes;
  read_ahead(beginning(stored));
  Xxh3 digest;
  for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    const size_t next = at + kAheadBytes;
    if (next < bytes.size())
      read_ahead(bytes.subspan(next, std::min(kPieceBytes, bytes.size() - next)));
    digest.update(piece.data(), piece.size());
    std::memcpy(static_cast<std::byte*>(out.raw()) + at, piece.data(), piece.size());
    drop_pages(piece);
  }
  require_checksum(*record, digest.value());
}

void read_all(const std::filesystem::path& folder, const Group& group,
              std::span<const NamedTensor> tensors) {
  std::vector<formats::TensorSpec> wanted;
  for (const NamedTensor& named : tensors) {
    wanted.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
  }
  std::vector<formats::TensorSpec> found;
  for (const TensorRecord& record : group.records) found.push_back(spec_of(record));
  const TensorDifferences differences = compare_tensors(wanted, found, DTypeRule::kEqual);
  if (!differences.none()) {
    throw FormatError(
        error_text(folder.string(), "", "the tensors of this run", differences.summary()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i + 1 < tensors.size()) read_ahead(beginning(*group.stored.at(tensors[i + 1].name)));
    read(folder, group, tensors[i].name, tensors[i].tensor);
  }
}

}  // namespace

struct CheckpointReader::Contents {
  std::filesystem::path folder;
  CheckpointState state;
  Group model;
  Group optimizer;
  std::vector<std::string> companions;
};

CheckpointReader::CheckpointReader(const std::filesystem::path& path)
    : contents_(std::make_unique<Contents>()) {
  Contents& c = *contents_;
  c.folder = find_checkpoint(path);
  const auto state_path = c.folder / internal::kStateName;
  const internal::StateFile file =
      internal::parse_state_file(read_file(state_path, kMaxStateBytes), state_path.string());
  c.state = file.state;
  for (const internal::FileRecord& record : file.companions) {
    require_file(c.folder / record.name);
    const std::string content = read_file(c.folder / record.name);
    check_bytes(c.folder / record.name, record, static_cast<int64_t>(content.size()),
                content.data(), content.size());
    c.companions.push_back(record.name);
  }
  c.model = open_group(c.folder, file.model);
  c.optimizer = open_group(c.folder, file.optimizer);
}

CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const std::filesystem::path& CheckpointReader::folder() const { return contents_->folder; }
const CheckpointState& CheckpointReader::state() const { return contents_->state; }
const std::vector<TensorRecord>& CheckpointReader::model() const {
  return contents_->model.records;
}
const std::vector<TensorRecord>& CheckpointReader::optimizer() const {
  return contents_->optimizer.records;
}
const std::vector<std::string>& CheckpointReader::companions() const {
  return contents_->companions;
}

bool CheckpointReader::has_model_tensor(const std::string& name) const {
  return contents_->model.find(name) != nullptr;
}

bool CheckpointReader::has_optimizer_tensor(const std::string& name) const {
  return contents_->optimizer.find(name) != nullptr;
}

void CheckpointReader::read_model(const std::string& name, const Tensor& out) const {
  read(contents_->folder, contents_->model, name, out);
}

void CheckpointReader::read_optimizer(const std::string& name, const Tensor& out) const {
  read(contents_->folder, contents_->optimizer, name, out);
}

void CheckpointReader::read_all_model(std::span<const NamedTensor> model) const {
  read_all(contents_->folder, contents_->model, model);
}

void CheckpointReader::read_all_optimizer(std::span<const NamedTensor> optimizer) const {
  read_all(contents_->folder, contents_->optimizer, optimizer);
}

const formats::StoredTensor& CheckpointReader::model_tensor(const std::string& name) const {
  return verified(contents_->folder, contents_->model, name);
}

const formats::StoredTensor& CheckpointReader::optimizer_tensor(const std::string& name) const {
  return verified(contents_->folder, contents_->optimizer, name);
}

void CheckpointReader::verify_checksums() const {
  for (const Group* group : {&contents_->model, &contents_->optimizer}) {
    for (const TensorRecord& record : group->records)
      verified(contents_->folder, *group, record.name);
  }
}

}  // namespace deltatrain::checkpoint
