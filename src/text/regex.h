// Regular expressions of tokenizer.json that have no matcher of their own, run by PCRE2.
//
// The files are written for Oniguruma's Ruby syntax. The expression is rewritten
// so that it means the same to PCRE2: character classes are Unicode 16.0's whatever
// the library's version, ^ and $ match at lines, (?m) lets the dot match line feeds,
// {n,m}+ repeats the repetition. What cannot be rewritten is refused by name.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace deltatrain::text {

// The expression in PCRE2's syntax. Throws UnsupportedError naming the construct.
std::string translate_regex(std::string_view oniguruma);

class Regex {
 public:
  // Throws UnsupportedError, or FormatError for an expression that is malformed.
  explicit Regex(std::string_view oniguruma);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Calls found(begin, end) for every match from left to right; an empty match directly behind another
  // match is none. The text is well-formed UTF-8. Throws FormatError where the expression needs more
  // backtracking on this text than is sensible. Safe from several threads.
  void find_all(std::string_view text, const std::function<void(size_t, size_t)>& found) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain::text
