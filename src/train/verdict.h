// How a rank ended: OUT/ranks/N.json, written before the process ends, since a launcher may end the
// others within seconds and hide their exit codes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "dist/communicator.h"

namespace deltatrain::train {

// "done", "stopped by a signal", "not finite", "lost a rank" or "error", by the exit code.
const char* verdict_word(int exit_code);

// Writes {"rank", "size", "host", "process", "step", "verdict", "exit_code"}, with an error its
// "message", and with a lost rank "lost": {"rank", "host", "step", "call", "what"}. `ranks` may be
// null: this process alone. `step`: steps done. Never throws: a rank ends as it has to, whether this
// can be written or not.
void record_verdict(const std::filesystem::path& out, const dist::Communicator* ranks, int64_t step,
                    int exit_code, const std::string& message) noexcept;

// Removes what an earlier run's rank of this number left, and rank 0 also those of more ranks.
void forget_verdicts(const std::filesystem::path& out, int rank, int size) noexcept;

// Whether a run that never began left nothing but verdicts there, or nothing at all.
bool holds_only_verdicts(const std::filesystem::path& out);

}  // namespace deltatrain::train
