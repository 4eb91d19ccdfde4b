// The weights of a model on disk, whichever way they lie there: a native checkpoint (a run's
// folder, its checkpoints folder or one iteration), or a Hugging Face folder (one safetensors file,
// or several with an index).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "formats/safetensors.h"

namespace deltatrain::checkpoint {

// A second name for a parameter, as lm_head.weight is for model.embeddings.weight in a model with a
// tied head. A file may hold either name, or both with the same bytes; different bytes are refused.
struct TiedName {
  std::string copy;
  std::string original;
};

class ModelFolder {
 public:
  // FormatError when `path` holds no model, naming what was looked for.
  explicit ModelFolder(const std::filesystem::path& path);
  ModelFolder(ModelFolder&&) noexcept;
  ModelFolder& operator=(ModelFolder&&) noexcept;
  ~ModelFolder();

  // The folder with the weights; config.json and the tokenizer's files are beside them.
  const std::filesystem::path& folder() const;
  bool is_native() const;
  std::optional<int64_t> step() const;  // of a native checkpoint

  const std::vector<formats::TensorSpec>& tensors() const;  // by name
  bool has(const std::string& name) const;
  // FormatError when absent or, in a native checkpoint, when its checksum is wrong.
  const formats::StoredTensor& tensor(const std::string& name) const;
  const std::filesystem::path& file_of(const std::string& name) const;

  // Passes the stored bytes of these tensors on, as CheckpointReader::stream_model does, past the
  // page cache (base/read_ahead.h): pieces of whole elements, 2 MiB at most.
  void stream(const std::vector<std::string>& names,
              const CheckpointReader::PieceConsumer& consume) const;

  // Which stored name stands for which parameter, once second names are accounted for: PARAMETER ->
  // STORED. FormatError when both names of a tie are there with different values.
  std::map<std::string, std::string> resolve_ties(std::span<const TiedName> ties) const;

  // Reads every parameter, converting floating dtypes. Names and shapes have to agree in both
  // directions: missing, extra and mis-shaped tensors are listed together in one FormatError before
  // anything is written.
  void read_all(std::span<const NamedTensor> parameters, std::span<const TiedName> ties = {}) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

}  // namespace deltatrain::checkpoint
