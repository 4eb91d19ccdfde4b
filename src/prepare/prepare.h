// Raw text to token files or token rows: reading, tokenizing, and putting the outputs together.
//
// The work goes by shards of the input (prepare/plan.h). The part of a finished shard stays in
// OUT.parts/ until all are there; then the outputs are written in the order of the input,
// OUT.manifest.json last, and the parts removed. A run that was stopped goes on with the shards
// that are missing. Which bytes come out depends on the input and the settings alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "prepare/part_file.h"
#include "prepare/records.h"
#include "prepare/row_assembly.h"
#include "prepare/text_encoder.h"

namespace deltatrain::prepare {

enum class OutputLayout : uint8_t { kMegatron, kRows };

struct PrepareOptions {
  std::vector<std::string> inputs;  // files, folders, globs
  std::string format = "auto";      // input_files.h
  RecordOptions records;
  std::string out;  // prefix of everything written; with kRows also the folder of the rows
  OutputLayout layout = OutputLayout::kMegatron;
  RowLayout rows;  // with kRows
  int64_t num_workers = 1;
  int64_t num_partitions =
      1;  // > 1: record k goes to partition k mod P, written besides the merged files
  double valid_fraction =
      0;  // share of the documents, spread evenly, that goes to OUT_valid_... instead
  bool overwrite = false;
  int64_t machine = 0;  // of num_machines: makes only every num_machines-th part
  int64_t num_machines = 1;
  bool merge = false;  // makes no parts, only the outputs from parts that are all there
  int64_t shard_bytes = int64_t{1} << 28;
};

struct OutputFile {
  std::string path;
  int64_t bytes = 0;
  std::string sha256;
};

struct PrepareResult {
  PartCounts counts;
  int64_t rows = 0;                 // with kRows
  int64_t dropped_tokens = 0;       // likewise: those of documents that are in no row
  std::vector<OutputFile> outputs;  // empty when only parts were made
  bool already_there = false;       // a run with the same settings had finished; nothing was done
};

// Throws ConfigError for options that contradict each other, outputs that exist, parts of other
// settings or an input without documents; FormatError and FileError for what is wrong with a file.
PrepareResult prepare_token_files(const PrepareOptions& options, const TextEncoder& encoder,
                                  Reporter& reporter);

}  // namespace deltatrain::prepare
