// Which files a list of files, folders and globs means, and what each of them is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "prepare/byte_stream.h"

namespace deltatrain::prepare {

enum class FileFormat : uint8_t { kText, kJsonLines, kArrow, kParquet };

std::string file_format_name(FileFormat format);  // "txt", "jsonl", "arrow", "parquet"

// Tables: rows with a column of text, stored in groups.
inline bool is_table(FileFormat format) {
  return format == FileFormat::kArrow || format == FileFormat::kParquet;
}

struct InputFile {
  std::string path;  // as given, or as found under what was given
  FileFormat format = FileFormat::kText;
  Compression compression = Compression::kNone;
  int64_t bytes = 0;
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t num_ignored = 0;  // files in folders whose names say nothing known
};

// In the order of `inputs`; what a folder (searched to any depth, names that begin with a dot left
// out) or a glob gives is sorted by path, byte by byte. `format` "auto" goes by the extension
// (.txt, .jsonl, .json, each also with .gz or .zst behind it, .arrow, .parquet); another name of a
// format holds for every file. In a folder that `datasets` saved, found within an input, the .arrow
// files are those that its state.json names, and state.json and its like are no input. Throws
// ConfigError for an input that does not exist or matches nothing, a file of unknown kind named
// outright, or one given twice.
InputFiles find_input_files(const std::vector<std::string>& inputs, const std::string& format);

}  // namespace deltatrain::prepare
