// state.json of a checkpoint: text to structs and back. Internal to the folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace deltatrain::checkpoint::internal {

// A file of the checkpoint. The checksum of a .safetensors file covers what stands before its data;
// that of any other file covers all of it.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  uint64_t checksum = 0;
};

struct TensorGroup {  // "model" or "optimizer"
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;  // by name; `file` is a name without folders
};

struct StateFile {
  CheckpointState state;
  TensorGroup model;
  TensorGroup optimizer;
  std::vector<FileRecord> companions;
};

// The last member of the text is a checksum of everything before it. FormatError when a value of
// state.extra is not JSON.
std::string to_json(const StateFile& file);

// Throws FormatError starting with `where` for text
// that is cut off, changed, or of another version.
StateFile parse_state_file(std::string_view text, const std::string& where);

}  // namespace deltatrain::checkpoint::internal
