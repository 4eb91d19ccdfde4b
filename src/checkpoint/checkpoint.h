// Checkpoints of the native format: named tensors and counters, to disk and back. Knows no model.
//
//   FOLDER/
//     latest_checkpointed_iteration.txt   the step of the newest whole checkpoint, written last
//     iter_0001024/
//       model.safetensors                 weights, under their Hugging Face names
//       optimizer.safetensors             optimizer state
//       config.json, ...                  companion files, which make the folder usable on its own
//       state.json                        counters, and dtype, shape and checksum of every tensor
//
// A save fills iter_0001024.tmp, flushes every file and the folder, renames it, and then replaces
// the tracker. Killed or out of space at any moment, it leaves the tracker naming a whole
// checkpoint. Bytes: docs/formats/native_checkpoint.md. All functions are reentrant; one folder
// takes one save at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "tensor/tensor.h"

namespace deltatrain::checkpoint {

struct NamedTensor {
  std::string name;
  Tensor tensor;  // host memory, contiguous
};

// What a run needs besides tensors. Values of `extra` are JSON texts (the caller's own: data
// position, random state, recipe digest, matrix-product algorithms); they come back equal as JSON,
// not as text.
struct CheckpointState {
  int64_t step = 0;
  int64_t consumed_samples = 0;
  std::map<std::string, std::string> extra;
};

// Optimizer tensors are named for the parameter they belong to.
std::string exp_avg_name(std::string_view parameter);     // PARAMETER.exp_avg
std::string exp_avg_sq_name(std::string_view parameter);  // PARAMETER.exp_avg_sq
std::string master_name(std::string_view parameter);  // PARAMETER.master, f32 copy of a bf16 weight

struct CompanionFile {
  std::string name;  // without folders
  std::string content;
};

struct SaveOptions {
  int64_t max_file_bytes = formats::kDefaultMaxShardBytes;
  std::vector<CompanionFile> companions;  // config.json, tokenizer.json, ...
  // Called before each file is begun, with its final name;
  // the tracker comes last. For progress, and for tests that break
  // the disk at a chosen point. May be empty; what it throws ends the save.
  std::function<void(const std::filesystem::path& file)> before_file;
};

struct SaveReport {
  std::filesystem::path folder;  // .../iter_0001024
  int64_t bytes = 0;
  double seconds = 0;
};

// Writes the checkpoint of state.step. An existing one of the same step
// is replaced in one exchange. Throws FileError with exit code 5 when
// the disk is full or refuses (what was written is removed again, the tracker
// and older checkpoints are as before), FormatError for a name given twice.
SaveReport save_checkpoint(const std::filesystem::path& folder, const CheckpointState& state,
                           std::span<const NamedTensor> model,
                           std::span<const NamedTensor> optimizer, const SaveOptions& options = {});

// Removes checkpoints other than the newest `keep_last` (0: all are kept, and nothing is removed
// but leftovers), those whose step is a multiple of keep_every (0: none) and the one that the
// tracker names. Also removes folders that a killed save left behind. Returns the steps removed.
std::vector<int64_t> prune_checkpoints(const std::filesystem::path& folder, int64_t keep_last,
                                       int64_t keep_every);

// Steps that have a folder, ascending; says nothing about their contents.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& folder);

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);

// The step in the tracker; absent when there is no tracker.
// FormatError when it holds anything else.
std::optional<int64_t> tracked_step(const std::filesystem::path& folder);

struct TensorRecord {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t checksum = 0;  // XXH3-64 of the bytes
  std::filesystem::path file;
};

// One checkpoint opened for reading. Opening checks that state.json is whole, that every file has
// its size, and that the files hold exactly the tensors it lists, with their dtypes and shapes.
// Checksums are checked when a tensor is read, or all at once by verify_checksums. Every refusal is
// a FormatError naming the file and the tensor.
class CheckpointReader {
 public:
  // `path`: a run's folder, its checkpoints folder, or one iter_NNNNNNN folder (see
  // find_checkpoint).
  explicit CheckpointReader(const std::filesystem::path& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::filesystem::path& folder() const;
  const CheckpointState& state() const;
  const std::vector<TensorRecord>& model() const;      // by name
  const std::vector<TensorRecord>& optimizer() const;  // by name; may be empty
  const std::vector<std::string>& companions() const;  // names of files in folder()
  bool has_model_tensor(const std::string& name) const;
  bool has_optimizer_tensor(const std::string& name) const;

  // Reads into a contiguous host tensor of the stored dtype and shape. The checksum is known when the
  // last byte is: after a FormatError for it the tensor holds what the file held.
  void read_model(const std::string& name, const Tensor& out) const;
  void read_optimizer(const std::string& name, const Tensor& out) const;

  // FormatError unless these are exactly the stored names, dtypes and shapes, with every missing, extra
  // and mis-shaped one.
  void require_model(const std::vector<formats::TensorSpec>& wanted) const;
  void require_optimizer(const std::vector<formats::TensorSpec>& wanted) const;

  // Passes the bytes of these tensors on piece by piece, each tensor's in order, tensors as they lie in
  // the files, while the disk reads on; pieces are of whole elements. FormatError for a checksum, behind
  // the last piece of its tensor, and for data that begin off their width and are cut within elements.
  using PieceConsumer =
      std::function<void(const std::string& name, int64_t begin, std::span<const std::byte> piece)>;
  void stream_model(const std::vector<std::string>& names, const PieceConsumer& consume) const;
  void stream_optimizer(const std::vector<std::string>& names, const PieceConsumer& consume) const;

  // require_model and stream_model into memory.
  void read_all_model(std::span<const NamedTensor> model) const;
  void read_all_optimizer(std::span<const NamedTensor> optimizer) const;

  // The stored bytes, checksum verified; valid as long as the reader lives.
  const formats::StoredTensor& model_tensor(const std::string& name) const;
  const formats::StoredTensor& optimizer_tensor(const std::string& name) const;

  void verify_checksums() const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Turns a run's folder (with checkpoints/ in it), a checkpoints folder (with the tracker in it) or
// an iter_NNNNNNN folder into the path of one checkpoint: the one that the tracker names.
// FormatError when there is none, naming what was looked for.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// Whether find_checkpoint could succeed: a tracker or a state.json is there.
bool is_native_checkpoint(const std::filesystem::path& path);

// The newest checkpoint of a run's folder or its checkpoints folder that passes every check,
// checksums included. Reasons why newer ones were passed over go into `problems`, one line each.
std::optional<std::filesystem::path> newest_whole_checkpoint(const std::filesystem::path& folder,
                                                             std::vector<std::string>* problems);

}  // namespace deltatrain::checkpoint
