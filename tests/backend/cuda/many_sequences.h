// Very many short sequences: 65,536 pairs of a sequence and a head are more than a launch has room for on any axis of its
// grid but the first.
#pragma once

#include <string>
#include <vector>

#include "backend/registry.h"
#include "verify/op_cases.h"

namespace deltatrain::test {

// Every op that takes sequences or heads, forward and backward, over `num_sequences` (even) of 16 tokens and 8 heads, and steps
// of one token each: what it makes
// of all of them at once must have the bits of what it makes of the first half and of the second; gradients of weights, whose
// sums have another order, are within their bound of the two halves' sum. Results have no reference.
std::vector<verify::OpCaseResult> run_many_sequences(backend::Backend& backend, DType dtype, int64_t num_sequences,
                                                     const std::string& only_op);

}  // namespace deltatrain::test
