// Comparing the tensors that a model wants with those that a file has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace deltatrain::checkpoint {

struct TensorDifferences {
  std::vector<std::string> missing;     // wanted, not there
  std::vector<std::string> extra;       // there, not wanted
  std::vector<std::string> mismatched;  // "name: expected f32 [2, 3], got f32 [3, 2]"
  bool has_wrong_dtypes = false;        // some of these are of a dtype that the rule refuses

  bool none() const { return missing.empty() && extra.empty() && mismatched.empty(); }
  // One line: "2 missing (a, b), 1 extra (c),
  // 1 mis-shaped (...)"; at most `limit` names of each kind.
  std::string summary(size_t limit = 8) const;
};

enum class DTypeRule : uint8_t {
  kEqual,     // dtypes must agree
  kFloating,  // any two of f64, f32, bf16, f16 agree
};

TensorDifferences compare_tensors(const std::vector<formats::TensorSpec>& wanted,
                                  const std::vector<formats::TensorSpec>& found, DTypeRule rule);

}  // namespace deltatrain::checkpoint
