// Writing a checkpoint piece by piece, for tensors that are made while they are written.
// save_checkpoint does the same for tensors that are in memory.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "formats/safetensors.h"

namespace deltatrain::checkpoint {

class CheckpointWriter {
 public:
  // Creates FOLDER/iter_NNNNNNN.tmp. Throws as save_checkpoint does.
  CheckpointWriter(const std::filesystem::path& folder, const CheckpointState& state,
                   const std::vector<formats::TensorSpec>& model,
                   const std::vector<formats::TensorSpec>& optimizer, const SaveOptions& options);
  ~CheckpointWriter();  // without commit(): removes what was written
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The next bytes of a tensor; those of one tensor come in order, tensors may alternate.
  void append_model(const std::string& name, const void* data, int64_t bytes);
  void append_optimizer(const std::string& name, const void* data, int64_t bytes);

  // Flushes everything, renames the folder and replaces the tracker.
  SaveReport commit();

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

}  // namespace deltatrain::checkpoint
