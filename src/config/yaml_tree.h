// The part of YAML that configuration needs, as a tree in which nothing is lost: every key and
// value with its line, plain scalars told apart from quoted ones, nothing typed yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain {

constexpr int64_t kMaxYamlBytes = int64_t{1} << 20;

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  int line = 0;         // of the value, from 1
  std::string text;     // of a scalar
  bool quoted = false;  // the scalar stood in quotes or was a block: surely a string
  std::string key;      // of a map's item
  int key_line = 0;
  std::vector<YamlNode> items;  // of a list or map, in the order of the file

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_plain() const { return is_scalar() && !quoted; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }
  const YamlNode* find(std::string_view name) const;  // item of a map, or null
};

// The one document in `text`; null for an empty one. Anchors, aliases, tags, a second document, a
// key given twice, nesting deeper than 16, bytes that aren't UTF-8 and text beyond kMaxYamlBytes
// are refused. Throws ConfigError "WHERE:LINE: ...". With line_numbers false, for text that is no
// file, "WHERE: ...".
YamlNode parse_yaml(std::string_view text, const std::string& where, bool line_numbers = true);

// The node in YAML's flow style, cut to a length that fits a message: 2e-4, "two words", [0, 4],
// {a: 1}, null.
std::string yaml_text(const YamlNode& node);

// A string as a YAML scalar that is read back as that string:
// plain where that is safe, else in double quotes.
std::string yaml_string(std::string_view text);

// Text in double quotes for a message: control characters escaped, cut to a length that fits.
std::string quoted_text(std::string_view text);

// Whether YAML readers take this plain text for something
// other than a string: null, a boolean, a number.
bool looks_typed(std::string_view plain);

}  // namespace deltatrain
