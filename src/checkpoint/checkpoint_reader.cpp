#include <algorithm>
#include <cstring>
#include <utility>

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

formats::TensorSpec spec_of(const TensorRecord& record) {
  return {record.name, record.dtype, record.shape};
}

// A group's files, opened, with each record's bytes.
struct Group {
  std::vector<TensorRecord> records;  // by name, with full paths
  std::vector<std::unique_ptr<formats::SafetensorsFile>> files;
  std::map<std::string, const formats::StoredTensor*> stored;
  std::map<std::string, const formats::SafetensorsFile*> file_of;

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
      group.file_of.emplace(name, file.get());
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
    const std::string holder = group.file_of.at(record.name)->path().filename();
    if (holder != record.file) {
      throw FormatError(error_text((folder / record.file).string(), record.name,
                                   "this tensor, as state.json says", "it in " + holder));
    }
    group.records.push_back(record);
    group.records.back().file = folder / record.file;
  }
  return group;
}

const TensorRecord& require_record(const std::filesystem::path& folder, const Group& group,
                                   const std::string& name) {
  const TensorRecord* record = group.find(name);
  if (record == nullptr)
    throw FormatError(error_text(folder.string(), name, "this tensor", "none"));
  return *record;
}

void require_checksum(const TensorRecord& record, uint64_t checksum) {
  if (checksum != record.checksum) {
    throw FormatError(error_text(record.file.string(), record.name + ": checksum",
                                 hex64(record.checksum), hex64(checksum)));
  }
}

const formats::StoredTensor& verified(const std::filesystem::path& folder, const Group& group,
                                      const std::string& name) {
  const TensorRecord& record = require_record(folder, group, name);
  const formats::StoredTensor& stored = *group.stored.at(name);
  read_ahead(stored.bytes);
  require_checksum(record, xxh3_64(stored.bytes.data(), stored.bytes.size()));
  return stored;
}

void stream(const std::filesystem::path& folder, const Group& group,
            const std::vector<std::string>& names, const CheckpointReader::PieceConsumer& consume) {
  struct Listed {
    const TensorRecord* record;
    FilePart part;
  };
  std::vector<Listed> list;
  for (const std::string& name : names) {
    const TensorRecord& record = require_record(folder, group, name);
    const formats::SafetensorsFile& file = *group.file_of.at(name);
    const std::span<const std::byte> whole(file.header_bytes().data(),
                                           static_cast<size_t>(file.file_bytes()));
    list.push_back({&record, {&record.file, whole, group.stored.at(name)->bytes}});
  }
  std::sort(list.begin(), list.end(), [](const Listed& a, const Listed& b) {
    return std::pair(a.record->file, a.part.bytes.data()) <
           std::pair(b.record->file, b.part.bytes.data());
  });
  std::vector<FilePart> parts;
  for (const Listed& listed : list) parts.push_back(listed.part);
  std::vector<Xxh3> digests(list.size());
  const auto finish = [&](size_t i) { require_checksum(*list[i].record, digests[i].value()); };
  size_t current = 0;
  read_parts(parts, [&](size_t i, size_t begin, std::span<const std::byte> piece) {
    for (; current < i; ++current) finish(current);
    digests[i].update(piece.data(), piece.size());
    consume(list[i].record->name, static_cast<int64_t>(begin), piece);
  });
  for (; current < list.size(); ++current) finish(current);
}

// The blocks of a file that are read end within elements where its data begin off their width, which no writer of ours
// does.
CheckpointReader::PieceConsumer whole_elements(const Group& group,
                                               const CheckpointReader::PieceConsumer& consume) {
  return
      [&group, &consume](const std::string& name, int64_t begin, std::span<const std::byte> piece) {
        const TensorRecord& record = *group.find(name);
        if (piece.size() % static_cast<size_t>(dtype_bytes(record.dtype)) != 0) {
          throw FormatError(error_text(
              record.file.string(), name,
              "data that begin at a multiple of their width, as they are saved", "another place"));
        }
        consume(name, begin, piece);
      };
}

void read(const std::filesystem::path& folder, const Group& group, const std::string& name,
          const Tensor& out) {
  DELTATRAIN_CHECK(out.is_contiguous(), name);
  const TensorRecord& record = require_record(folder, group, name);
  if (record.dtype != out.dtype() || record.shape != out.shape()) {
    throw FormatError(
        error_text(record.file.string(), name, describe(out),
                   std::string(dtype_name(record.dtype)) + " " + to_string(record.shape)));
  }
  stream(folder, group, {name},
         [&out](const std::string&, int64_t begin, std::span<const std::byte> piece) {
           std::memcpy(static_cast<std::byte*>(out.raw()) + begin, piece.data(), piece.size());
         });
}

void require_all(const std::filesystem::path& folder, const Group& group,
                 const std::vector<formats::TensorSpec>& wanted) {
  std::vector<formats::TensorSpec> found;
  for (const TensorRecord& record : group.records) found.push_back(spec_of(record));
  const TensorDifferences differences = compare_tensors(wanted, found, DTypeRule::kEqual);
  if (!differences.none()) {
    throw FormatError(
        error_text(folder.string(), "", "the tensors of this run", differences.summary()));
  }
}

void read_all(const std::filesystem::path& folder, const Group& group,
              std::span<const NamedTensor> tensors) {
  std::vector<formats::TensorSpec> wanted;
  std::vector<std::string> names;
  std::map<std::string, std::byte*> places;
  for (const NamedTensor& named : tensors) {
    DELTATRAIN_CHECK(named.tensor.is_contiguous(), named.name);
    wanted.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
    names.push_back(named.name);
    places[named.name] = static_cast<std::byte*>(named.tensor.raw());
  }
  require_all(folder, group, wanted);
  stream(folder, group, names,
         [&places](const std::string& name, int64_t begin, std::span<const std::byte> piece) {
           std::memcpy(places.at(name) + begin, piece.data(), piece.size());
         });
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

void CheckpointReader::require_model(const std::vector<formats::TensorSpec>& wanted) const {
  require_all(contents_->folder, contents_->model, wanted);
}

void CheckpointReader::require_optimizer(const std::vector<formats::TensorSpec>& wanted) const {
  require_all(contents_->folder, contents_->optimizer, wanted);
}

void CheckpointReader::stream_model(const std::vector<std::string>& names,
                                    const PieceConsumer& consume) const {
  stream(contents_->folder, contents_->model, names, whole_elements(contents_->model, consume));
}

void CheckpointReader::stream_optimizer(const std::vector<std::string>& names,
                                        const PieceConsumer& consume) const {
  stream(contents_->folder, contents_->optimizer, names,
         whole_elements(contents_->optimizer, consume));
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
    std::vector<std::string> names;
    for (const TensorRecord& record : group->records) names.push_back(record.name);
    stream(contents_->folder, *group, names,
           [](const std::string&, int64_t, std::span<const std::byte>) {});
  }
}

}  // namespace deltatrain::checkpoint
