#include "verify/op_cases.h"

#include <sstream>

#include "base/error.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  add_dense_cases(cases);
  add_score_cases(cases);
  add_mixer_cases(cases);
  add_delta_rule_cases(cases);
  add_attention_cases(cases);
  add_update_cases(cases);
  return cases;
}

}  // namespace

std::string describe(const OpCaseResult& result) {
  std::ostringstream text;
  text << result.op << " [" << result.case_name << "]";
  if (!result.tensor.empty()) text << ": " << result.tensor;
  if (!result.supported) {
    text << ": not supported: " << result.note;
  } else {
    text << ": error " << result.error << (result.passed ? " within " : ", bound ") << result.bound;
    if (!result.passed) {
      text << "; furthest off at element " << result.worst_index << ": expected " << result.expected
           << ", got " << result.got;
    }
    if (!result.note.empty()) text << " (" << result.note << ")";
  }
  return text.str();
}

std::vector<std::string> op_case_names() {
  std::vector<std::string> names;
  for (const OpCase& one : all_cases()) {
    if (names.empty() || names.back() != one.op) names.push_back(one.op);
  }
  return names;
}

std::vector<OpCaseResult> run_op_cases(const Context& tested, const Context& reference,
                                       const OpCaseFilter& filter) {
  if (reference.activation_dtype != DType::kF64) {
    throw ConfigError(error_text("run_op_cases", "reference", "a context in f64",
                                 dtype_name(reference.activation_dtype)));
  }
  std::vector<OpCaseResult> results;
  for (const OpCase& one : all_cases()) {
    if (!filter.op.empty() && one.op != filter.op) continue;
    if (one.name.find(filter.case_name) == std::string::npos) continue;
    if (filter.set == CaseSet::kSmall && one.set != CaseSet::kSmall) continue;
    one.run({tested, reference, one.name, results, filter.surroundings});
  }
  return results;
}

}  // namespace deltatrain::verify
