// Values of chat templates and what can be done with them: filters, tests and methods, as Jinja and
// Python define them. A value is JSON; `undefined`, which JSON has not, is its discarded value.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace deltatrain::serve {

using TemplateValue = nlohmann::ordered_json;

struct TemplateArguments {
  std::vector<TemplateValue> values;
  std::vector<std::pair<std::string, TemplateValue>> keywords;

  // Argument number `index`, or the one named so; undefined where neither is given.
  TemplateValue get(size_t index, const char* name) const;
};

inline TemplateValue undefined_value() {
  return TemplateValue(TemplateValue::value_t::discarded);
}
inline bool is_undefined(const TemplateValue& value) { return value.is_discarded(); }
bool is_true(const TemplateValue& value);
std::string to_text(const TemplateValue& value);  // as str() in Python
// All throw FormatError for what is not known or does not fit; the caller names the template.
TemplateValue apply_operator(const std::string& name, const TemplateValue& a,
                             const TemplateValue& b);
TemplateValue apply_filter(const std::string& name, const TemplateValue& value,
                           const TemplateArguments& arguments);
bool apply_test(const std::string& name, const TemplateValue& value,
                const TemplateArguments& arguments);
TemplateValue call_method(const std::string& name, const TemplateValue& value,
                          const TemplateArguments& arguments);
// value[index], or value.name; undefined where there is none.
TemplateValue item_of(const TemplateValue& value, const TemplateValue& index);
// value[begin:end:step]; undefined for what is not given.
TemplateValue slice_of(const TemplateValue& value, const TemplateValue& begin,
                       const TemplateValue& end, const TemplateValue& step);
// What a loop goes over: elements, keys or characters.
std::vector<TemplateValue> elements_of(const TemplateValue& value);

}  // namespace deltatrain::serve
