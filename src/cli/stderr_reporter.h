// The program's Reporter: lines and a progress bar on stderr.
#pragma once

#include <memory>

#include "base/reporter.h"

namespace deltatrain::cli {

// A bar with rate and ETA when stderr is a terminal, otherwise plain lines every few seconds.
std::unique_ptr<Reporter> make_stderr_reporter();

}  // namespace deltatrain::cli
