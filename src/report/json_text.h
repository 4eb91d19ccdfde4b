// JSON of other programs and of killed ones.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace deltatrain::report {

// Python writes NaN, Infinity and -Infinity, which JSON does not have: outside of texts they
// become null.
std::string without_nan(std::string_view text);

// Discarded (is_discarded()) when it is no JSON. Never throws.
nlohmann::json parse_json(std::string_view text);

// A number of the object; NaN for null and for other things that are no number; none without the
// key. Texts that are a number count as one: newer trainers print them so.
std::optional<double> find_number(const nlohmann::json& object, const char* key);
std::optional<int64_t> find_step(const nlohmann::json& object, const char* key);
std::string find_text(const nlohmann::json& object, const char* key);  // "" without one

}  // namespace deltatrain::report
