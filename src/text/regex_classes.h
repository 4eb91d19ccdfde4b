// Sets of characters for the rewriting of regular expressions: Unicode 16.0's, in PCRE2's notation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace deltatrain::text {

// Appends a code point as \x{...}.
void append_code_point(std::string& text, uint32_t code_point);

class CharacterSet {
 public:
  // A general category ("L", "Lu", "Letter" ...) or a script that PCRE2 knows ("Han"); nothing for others.
  static std::optional<CharacterSet> property(std::string_view name);
  static CharacterSet white_space();
  static CharacterSet word();         // \w
  static CharacterSet hexadecimal();  // \h

  void negate() { negated_ = !negated_; }

  std::string as_class() const;  // with brackets
  std::string as_items() const;  // for use between brackets

 private:
  struct Range {
    uint32_t first, last;
  };
  std::string native_;         // PCRE2's own name of nearly the same set; may be empty
  std::vector<Range> ranges_;  // the set, if it is one of ours
  std::vector<Range> missing_;  // what the native set lacks
  bool exact_ = true;           // the native set has nothing too much
  bool negated_ = false;

  template <class Test>
  static CharacterSet from_table(std::string_view native, const Test& test);
};

}  // namespace deltatrain::text
