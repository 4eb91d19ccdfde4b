// A value of a JSON file together with where it stands, so that every complaint names file and key.
// Included by .cpp files only: it brings the JSON library along.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace deltatrain::text {

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& where, std::string path)
      : value_(&value), where_(&where), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  bool has(const char* key) const { return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null(); }

  JsonNode at(const char* key) const {
    if (!value_->is_object()) fail("an object");
    const auto found = value_->find(key);
    if (found == value_->end()) {
      throw FormatError(error_text(*where_, path_, std::string("a key \"") + key + "\"", "none"));
    }
    return {*found, *where_, path_.empty() ? key : path_ + "." + key};
  }
  JsonNode at(size_t index) const {
    return {(*value_)[index], *where_, path_ + "[" + std::to_string(index) + "]"};
  }
  size_t size() const {
    if (!value_->is_array()) fail("a list");
    return value_->size();
  }

  const std::string& string() const {
    if (!value_->is_string()) fail("a string");
    return value_->get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!value_->is_boolean()) fail("true or false");
    return value_->get<bool>();
  }
  int64_t integer(int64_t low, int64_t high) const {
    const bool fits = value_->is_number_unsigned()
                          ? value_->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                          : value_->is_number_integer();
    if (!fits || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
      fail("an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return value_->get<int64_t>();
  }
  bool boolean_or(const char* key, bool otherwise) const { return has(key) ? at(key).boolean() : otherwise; }
  std::string string_or(const char* key, const std::string& otherwise) const {
    return has(key) ? at(key).string() : otherwise;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    std::string got = value_->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (got.size() > 60) got = got.substr(0, 57) + "...";
    throw FormatError(error_text(*where_, path_, expected, got));
  }
  [[noreturn]] void unsupported(const std::string& expected, const std::string& got) const {
    throw UnsupportedError(error_text(*where_, path_, expected, got));
  }

 private:
  const nlohmann::json* value_;
  const std::string* where_;
  std::string path_;
};

// Throws FormatError naming the file and the byte.
inline nlohmann::json parse_json(std::string_view text, const std::string& where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = error.byte > 0 ? error.byte - 1 : 0;  // counted from 1
    const std::string rest(text.substr(std::min(at, text.size()), 20));
    throw FormatError(error_text(
        where, "byte " + std::to_string(error.byte), "valid JSON",
        rest.empty() ? "the end" : nlohmann::json(rest).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
  }
}

}  // namespace deltatrain::text
