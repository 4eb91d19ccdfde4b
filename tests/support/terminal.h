// The built program as it is seen by somebody at a terminal.
#pragma once

#include <string>

#include "support/test_files.h"  // ProgramResult

namespace deltatrain::test {

// As run_program(), with a terminal of 100 columns for standard error: `err` is what it was shown.
ProgramResult run_program_on_terminal(const std::string& arguments);

}  // namespace deltatrain::test
