#include "report/json_text.h"

#include <charconv>
#include <cmath>

#include "report/run_builder.h"

namespace deltatrain::report {

std::string without_nan(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      result += c;
      if (c == '\\' && i + 1 < text.size()) {
        result += text[++i];
      } else if (c == '"') {
        in_text = false;
      }
      continue;
    }
    size_t length = 0;
    for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (text.substr(i, word.size()) == word) length = word.size();
      if (length > 0) break;
    }
    if (length > 0) {
      result += "null";
      i += length - 1;
      continue;
    }
    in_text = c == '"';
    result += c;
  }
  return result;
}

nlohmann::json parse_json(std::string_view text) {
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_discarded() && text.find_first_of("NI") != std::string_view::npos)
    parsed = nlohmann::json::parse(without_nan(text), nullptr, false);
  return parsed;
}

std::optional<double> find_number(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) return {};
  if (at->is_number()) return at->get<double>();
  if (!at->is_string()) return std::nan("");
  const std::string& text = at->get_ref<const std::string&>();
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? value : std::nan("");
}

std::optional<int64_t> find_step(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_integer()) return {};
  if (at->is_number_unsigned() && at->get<uint64_t>() > static_cast<uint64_t>(kLargestStep))
    return {};
  const auto step = at->get<int64_t>();
  if (!is_step(step)) return {};
  return step;
}

std::string find_text(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

}  // namespace deltatrain::report
