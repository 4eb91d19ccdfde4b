// Parts to rows of equal length, as Flash Linear Attention's preprocessing makes them, in the
// folder that Hugging Face `datasets` would save. docs/prepare.md states the rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/reporter.h"

namespace deltatrain::prepare {

// Where tokens that do not fill a row are dropped: at the end of each batch of documents, which is
// what datasets.map with a function of batches gives, or at the end of everything.
enum class DropTails : uint8_t { kPerBatch, kOnce };

struct RowLayout {
  int64_t seq_length = 2048;
  DropTails drop_tails = DropTails::kPerBatch;
  int64_t map_batch_size = 2048;  // documents
  int64_t map_processes = 64;     // the documents are dealt to them in contiguous parts
  bool shuffle = true;            // documents by numpy's default_rng(seed).permutation first
  uint64_t seed = 42;
};

struct RowFile {
  std::string path;
  int64_t bytes = 0;
  std::string sha256;
};

struct AssembledRows {
  int64_t rows = 0;
  int64_t dropped_tokens = 0;
  std::vector<RowFile> files;  // state.json last
};

// Puts the parts (in order, of int32 ids) together in `folder`, which is created. The data set can
// be opened once state.json is there. ConfigError when there are too few tokens for one row.
AssembledRows assemble_rows(const std::vector<std::string>& part_stems, const std::string& folder,
                            const RowLayout& layout, Reporter& reporter);

// The files of such a folder that are there, by their names; for removal and for refusals.
std::vector<std::string> row_files_in(const std::string& folder);

}  // namespace deltatrain::prepare
