// Checks of option values beyond their type.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace deltatrain::cli {

// A whole number from `low` to `high`, in digits: CLI11 itself takes -1 for 2^64 - 1 and the
// largest value for what is larger.
CLI::Validator whole_number(uint64_t low, uint64_t high = std::numeric_limits<uint64_t>::max());

// UTF-8, not empty.
CLI::Validator well_formed_text();

}  // namespace deltatrain::cli
