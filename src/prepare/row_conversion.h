// Token rows as Hugging Face `datasets` saves them to token files, each row a sequence and a
// document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "formats/indexed_dataset.h"
#include "prepare/prepare.h"  // OutputFile

namespace deltatrain::prepare {

struct ConversionOptions {
  std::string folder;  // with state.json and .arrow files
  std::string out;     // OUT.bin, OUT.idx, OUT.manifest.json
  formats::DocumentIndices indices = formats::DocumentIndices::kMegatron;
  int64_t vocab_size = 0;  // ids must lie below it; 0: not checked
  bool overwrite = false;
};

struct ConversionResult {
  int64_t rows = 0;
  int64_t row_length = 0;
  int64_t checked_rows = 0;  // read back and found the same
  std::vector<OutputFile> outputs;
};

// Throws FormatError for a row of another length than the first, null, or with an id that is none
// (file, row and position are named); ConfigError where outputs exist. Then reads the first, middle
// and last row of every file back from the outputs: CheckFailedError, and no outputs, where one
// differs.
ConversionResult convert_rows(const ConversionOptions& options, Reporter& reporter);

}  // namespace deltatrain::prepare
