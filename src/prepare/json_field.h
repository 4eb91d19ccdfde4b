// The text in one field of a line of JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace deltatrain::prepare {

// So many bytes behind a line must be readable; what they hold does not matter.
inline constexpr size_t kJsonPadding = 64;
inline constexpr int kMaxJsonDepth = 1024;
// No part of JSON; at the beginning of a file the reader of blocks takes it away.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

struct JsonField {
  enum class Outcome : uint8_t {
    kText,           // the field is there and a string
    kIllFormedUtf8,  // somewhere in the line
    kBadString,      // a string with escapes that stand for no character; got: what is wrong
    kBroken,         // no JSON otherwise; got: what is wrong
    kNotAnObject,    // got: what it is, "an array"
    kMissing,        // got: the keys that are there, the first 200 bytes or so; none: empty
    kNull,           // got: "null"
    kNotText,        // got: what it is, "a number"
  };
  Outcome outcome = Outcome::kBroken;
  std::string_view text;  // well-formed UTF-8 in the reader's memory, until its next call
  std::string got;
};

// For one thread at a time; keeps memory between lines.
class JsonFieldReader {
 public:
  virtual ~JsonFieldReader() = default;
  // The whole line is checked, nested at most kMaxJsonDepth deep. Of several equal keys the last
  // counts, as in Python. Whatever the line holds is an outcome: nothing is thrown.
  virtual JsonField read(std::string_view line, std::string_view key) = 0;
  // Gives back the memory, and with it the last text.
  virtual void release() = 0;
};

// By simdjson (json_field_simdjson.cpp); in a program without it the scanning one.
std::unique_ptr<JsonFieldReader> make_json_field_reader();

// The same outcomes and texts in one pass of our own (scanning_json_field.cpp).
std::unique_ptr<JsonFieldReader> make_scanning_json_field_reader();

// The same by nlohmann/json's events, at a tenth of the speed: for lines that the others refuse.
std::unique_ptr<JsonFieldReader> make_plain_json_field_reader();

}  // namespace deltatrain::prepare
