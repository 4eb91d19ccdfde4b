// Times of the ops at the shapes of the full-size models, against what the card's memory and matrix units can do.
#pragma once

#include "backend/registry.h"

namespace deltatrain::test {

// Prints one line per op and shape: median time, rate, share of the limit.
void print_op_timings(backend::Backend& backend, const std::string& only_op);

}  // namespace deltatrain::test
