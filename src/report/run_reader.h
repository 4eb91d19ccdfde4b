// Logs of training runs, ours and others', read into one form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "report/run.h"

namespace deltatrain::report {

struct RunReaderOptions {
  double divisor = 0;          // of the losses; 0: not given, 1
  double trainer_divisor = 0;  // the same, for logs of Hugging Face's trainer alone
  int64_t logging_steps = 1;   // of console output, which names no steps
  // Tokens of a step on each device, for logs that tell the time of a step alone; 0: not known.
  double tokens_per_step_and_device = 0;
};

// `path`: a file, whose contents tell what it is, or a folder: of a run of ours, or with
// trainer_state.json or trainer_log.jsonl, its own or its last checkpoint's. Files of killed and of
// running processes are fine: a last line cut off is left out and counted.
// FileError where it cannot be read; FormatError, naming file and line, for what is no such log.
RunRecord read_run(const std::filesystem::path& path, const RunReaderOptions& options = {});

// Whether read_run would look for a run there: for telling runs from other results.
bool looks_like_run(const std::filesystem::path& path);

}  // namespace deltatrain::report
