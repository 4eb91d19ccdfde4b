// The division of the input into shards, which follows from the files and the settings alone: so
// any number of workers, machines and restarts makes the same parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "prepare/input_files.h"
#include "prepare/records.h"

namespace deltatrain::prepare {

struct Shard {
  std::vector<FileRange> ranges;  // in order
  int64_t bytes = 0;
  std::string identity;  // digest of the names, forms, fingerprints and ranges of its files
};

struct Plan {
  Plan() = default;
  Plan(Plan&&) = default;
  Plan& operator=(Plan&&) = default;

  std::vector<InputFile> files;           // the ranges point into it
  std::vector<std::string> fingerprints;  // of the files
  std::vector<Shard> shards;
  int64_t bytes = 0;
};

// Files that can be read from the middle are cut into ranges of `shard_bytes`; others stay whole.
// Ranges are put together in order until a shard has shard_bytes. A file's fingerprint is its size
// and a checksum of 64 KiB at either end: a change that keeps all three is not noticed.
Plan make_plan(std::vector<InputFile> files, const RecordOptions& options, int64_t shard_bytes);

}  // namespace deltatrain::prepare
