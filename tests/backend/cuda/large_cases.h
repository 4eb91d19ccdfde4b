// Cases too large for the ordinary list: many blocks, the models' head sizes over whole sequences, and tensors of more
// than 2^31 elements.
#pragma once

#include <vector>

#include "backend/registry.h"
#include "verify/op_cases.h"

namespace deltatrain::test {

// Against the reference in f64, as run_op_cases does.
std::vector<verify::OpCaseResult> run_long_cases(const Context& tested, const Context& reference, const std::string& only_op);

// The last rows of a tensor past 2^31 elements must equal those rows computed alone, of products within their bound.
// Results have no reference.
std::vector<verify::OpCaseResult> run_huge_cases(backend::Backend& backend, const std::string& only_op);

}  // namespace deltatrain::test
