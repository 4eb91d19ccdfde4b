// Logs of Hugging Face's trainer: trainer_state.json, trainer_log.jsonl, and what it prints.
//
// A loss is the mean since the event before. With some versions it is larger by the number of
// processes: the divisor takes that out, and only whoever started the run knows it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "report/run.h"

namespace deltatrain::report {

// Each: none where the text is of another kind. Values that are not finite, which Python writes as
// NaN and Infinity, are taken as such.
std::optional<RunRecord> read_trainer_state(const std::filesystem::path& file,
                                            std::string_view text, double divisor);
std::optional<RunRecord> read_trainer_log(const std::filesystem::path& file, std::string_view text,
                                          double divisor);
// The lines do not name the step: event n is step n * logging_steps.
std::optional<RunRecord> read_trainer_console(const std::filesystem::path& file,
                                              std::string_view text, double divisor,
                                              int64_t logging_steps);

}  // namespace deltatrain::report
