// Parts to token files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "formats/indexed_dataset.h"
#include "prepare/part_file.h"

namespace deltatrain::prepare {

// Where documents go. Only one of num_partitions > 1 and valid_fraction > 0 may be used.
struct Layout {
  std::string out;
  std::string level_name;  // "text_document": behind the prefix
  int64_t num_partitions = 1;
  double valid_fraction = 0;

  std::string merged() const { return out + "_" + level_name; }
  std::string partition(int64_t i) const {
    return out + "_" + std::to_string(i) + "_" + level_name;
  }
  std::string valid() const { return out + "_valid_" + level_name; }
  std::vector<std::string> prefixes() const;  // of all token files, in the order of the manifest
};

struct TokenFiles {
  std::string prefix;
  int64_t documents = 0;
  int64_t tokens = 0;
  formats::IndexedDatasetWriter::Digests digests;
};

// Puts the parts (in order) together. Document d
// is for validation if floor((d + 1) f) > floor(d f).
std::vector<TokenFiles> assemble(const std::vector<std::string>& part_stems, const Layout& layout,
                                 formats::TokenType type, int64_t total_tokens, Reporter& reporter);

}  // namespace deltatrain::prepare
