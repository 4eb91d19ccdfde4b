#include "checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "checkpoint/folders.h"
#include "checkpoint/iteration_folder.h"
#include "checkpoint/state_file.h"

namespace deltatrain::checkpoint {

namespace {

// One group of tensors on its way to disk: the files, and how far each tensor has come.
class GroupWriter {
 public:
  GroupWriter(const std::filesystem::path& folder, const char* stem,
              const std::vector<formats::TensorSpec>& specs, int64_t max_file_bytes)
      : files_(folder, stem, specs, max_file_bytes) {
    for (const formats::TensorSpec& spec : specs)
      progress_.emplace(spec.name, Progress{spec, 0, Xxh3()});
  }

  void append(const std::string& name, const void* data, int64_t bytes) {
    const auto it = progress_.find(name);
    DELTATRAIN_CHECK(it != progress_.end(), name);
    Progress& progress = it->second;
    progress.checksum.update(data, static_cast<size_t>(bytes));
    files_.write(name, progress.written, data, bytes);
    progress.written += bytes;
  }

  internal::TensorGroup commit() {
    files_.commit();
    internal::TensorGroup group;
    for (const auto& file : files_.files()) {
      group.files.push_back({file->path().filename().string(), file->file_bytes(),
                             xxh3_64(file->header_bytes().data(), file->header_bytes().size())});
    }
    if (const std::string index = files_.index_text(); !index.empty()) {
      group.files.push_back({files_.index_path().filename().string(),
                             static_cast<int64_t>(index.size()),
                             xxh3_64(index.data(), index.size())});
    }
    for (const auto& [name, progress] : progress_) {
      group.tensors.push_back({name, progress.spec.dtype, progress.spec.shape,
                               progress.checksum.value(), files_.file_of(name).filename()});
    }
    return group;
  }

 private:
  struct Progress {
    formats::TensorSpec spec;
    int64_t written = 0;
    Xxh3 checksum;
  };
  formats::SafetensorsFolderWriter files_;
  std::map<std::string, Progress> progress_;
};

int64_t total_bytes(const std::vector<formats::TensorSpec>& specs) {
  int64_t bytes = 0;
  for (const formats::TensorSpec& spec : specs) bytes += spec.num_bytes();
  return bytes;
}

}  // namespace

struct CheckpointWriter::Contents {
  std::filesystem::path folder;
  SaveOptions options;
  internal::StateFile state_file;
  // Before the writers: their files are closed before an unfinished folder is removed.
  std::unique_ptr<IterationFolder> iteration;
  std::unique_ptr<GroupWriter> model;
  std::unique_ptr<GroupWriter> optimizer;

  void before(const std::filesystem::path& file) const {
    if (options.before_file) options.before_file(file);
  }
};

CheckpointWriter::CheckpointWriter(const std::filesystem::path& folder,
                                   const CheckpointState& state,
                                   const std::vector<formats::TensorSpec>& model,
                                   const std::vector<formats::TensorSpec>& optimizer,
                                   const SaveOptions& options)
    : contents_(std::make_unique<Contents>()) {
  Contents& c = *contents_;
  DELTATRAIN_CHECK(state.consumed_samples >= 0, "step " + std::to_string(state.step));
  c.folder = folder;
  c.options = options;
  c.state_file.state = state;
  int64_t bytes = total_bytes(model) + total_bytes(optimizer);
  for (const CompanionFile& companion : options.companions)
    bytes += static_cast<int64_t>(companion.content.size());
  c.iteration = std::make_unique<IterationFolder>(folder, state.step, bytes);
  const std::filesystem::path& temporary = c.iteration->path();
  c.before(c.iteration->final_path() / "model.safetensors");
  c.model = std::make_unique<GroupWriter>(temporary, "model", model, options.max_file_bytes);
  if (!optimizer.empty()) {
    c.before(c.iteration->final_path() / "optimizer.safetensors");
    c.optimizer =
        std::make_unique<GroupWriter>(temporary, "optimizer", optimizer, options.max_file_bytes);
  }
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::append_model(const std::string& name, const void* data, int64_t bytes) {
  contents_->model->append(name, data, bytes);
}

void CheckpointWriter::append_optimizer(const std::string& name, const void* data, int64_t bytes) {
  contents_->optimizer->append(name, data, bytes);
}

SaveReport CheckpointWriter::commit() {
  Contents& c = *contents_;
  c.state_file.model = c.model->commit();
  if (c.optimizer) c.state_file.optimizer = c.optimizer->commit();
  std::set<std::string> names = {internal::kStateName};
  for (const auto* group : {&c.state_file.model, &c.state_file.optimizer}) {
    for (const internal::FileRecord& file : group->files) names.insert(file.name);
  }
  const std::filesystem::path& temporary = c.iteration->path();
  const std::filesystem::path& final = c.iteration->final_path();
  for (const CompanionFile& companion : c.options.companions) {
    DELTATRAIN_CHECK(names.insert(companion.name).second, companion.name);
    c.before(final / companion.name);
    write_file_atomically(temporary / companion.name, companion.content);
    c.state_file.companions.push_back(
        {companion.name, static_cast<int64_t>(companion.content.size()),
         xxh3_64(companion.content.data(), companion.content.size())});
  }
  c.before(final / internal::kStateName);
  const std::string state_text = internal::to_json(c.state_file);
  write_file_atomically(temporary / internal::kStateName, state_text);
  c.iteration->commit([&c] { c.before(c.folder / internal::kTrackerName); });

  SaveReport report;
  report.folder = final;
  report.bytes = static_cast<int64_t>(state_text.size());
  for (const auto* files :
       {&c.state_file.model.files, &c.state_file.optimizer.files, &c.state_file.companions}) {
    for (const internal::FileRecord& file : *files) report.bytes += file.bytes;
  }
  report.seconds = c.iteration->seconds();
  return report;
}

SaveReport save_checkpoint(const std::filesystem::path& folder, const CheckpointState& state,
                           std::span<const NamedTensor> model,
                           std::span<const NamedTensor> optimizer, const SaveOptions& options) {
  const auto specs_of = [](std::span<const NamedTensor> tensors) {
    std::vector<formats::TensorSpec> specs;
    for (const NamedTensor& named : tensors) {
      DELTATRAIN_CHECK(named.tensor.is_contiguous(), named.name);
      specs.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
    }
    std::sort(specs.begin(), specs.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return specs;
  };
  CheckpointWriter writer(folder, state, specs_of(model), specs_of(optimizer), options);
  for (const NamedTensor& named : model) {
    writer.append_model(named.name, named.tensor.raw(), named.tensor.num_bytes());
  }
  for (const NamedTensor& named : optimizer) {
    writer.append_optimizer(named.name, named.tensor.raw(), named.tensor.num_bytes());
  }
  return writer.commit();
}

std::string exp_avg_name(std::string_view parameter) { return std::string(parameter) + ".exp_avg"; }
std::string exp_avg_sq_name(std::string_view parameter) {
  return std::string(parameter) + ".exp_avg_sq";
}
std::string master_name(std::string_view parameter) { return std::string(parameter) + ".master"; }

}  // namespace deltatrain::checkpoint
