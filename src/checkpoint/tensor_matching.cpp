#include "checkpoint/tensor_matching.h"

#include <map>

#include "formats/element_cast.h"

namespace deltatrain::checkpoint {

namespace {

std::string describe(const formats::TensorSpec& spec) {
  return std::string(dtype_name(spec.dtype)) + " " + to_string(spec.shape);
}

void append(std::string& text, const std::vector<std::string>& names, const std::string& kind,
            size_t limit) {
  if (names.empty()) return;
  if (!text.empty()) text += ", ";
  text += std::to_string(names.size()) + " " + kind + " (";
  for (size_t i = 0; i < names.size() && i < limit; ++i) text += (i > 0 ? "; " : "") + names[i];
  if (names.size() > limit) text += "; and " + std::to_string(names.size() - limit) + " more";
  text += ")";
}

}  // namespace

std::string TensorDifferences::summary(size_t limit) const {
  std::string text;
  append(text, missing, "missing", limit);
  append(text, extra, "extra", limit);
  append(text, mismatched, "mis-shaped", limit);
  return text;
}

TensorDifferences compare_tensors(const std::vector<formats::TensorSpec>& wanted,
                                  const std::vector<formats::TensorSpec>& found, DTypeRule rule) {
  std::map<std::string, const formats::TensorSpec*> by_name;
  for (const formats::TensorSpec& spec : found) by_name.emplace(spec.name, &spec);
  TensorDifferences differences;
  for (const formats::TensorSpec& want : wanted) {
    const auto it = by_name.find(want.name);
    if (it == by_name.end()) {
      differences.missing.push_back(want.name);
      continue;
    }
    const formats::TensorSpec& got = *it->second;
    const bool same_dtype = want.dtype == got.dtype ||
                            (rule == DTypeRule::kFloating && formats::is_floating(want.dtype) &&
                             formats::is_floating(got.dtype));
    differences.has_wrong_dtypes |= !same_dtype;
    if (!same_dtype || want.shape != got.shape) {
      differences.mismatched.push_back(want.name + ": expected " + describe(want) + ", got " +
                                       describe(got));
    }
    by_name.erase(it);
  }
  for (const auto& [name, spec] : by_name) differences.extra.push_back(name);
  return differences;
}

}  // namespace deltatrain::checkpoint
