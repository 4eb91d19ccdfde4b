// The first stage of reading a chat template: text, statements and outputs, with white space as the
// marks around it say. Source: Jinja's lexer with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::serve {

// White space as Jinja sees it.
inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Text, or what stands between the marks of a statement or an output.
struct TemplatePiece {
  enum class Kind : uint8_t { kText, kStatement, kOutput } kind;
  std::string text;
  int line = 1;
};

// FormatError, "WHERE: line N: ...", for marks without an end and text that is no UTF-8; sources of
// up to 1 MiB.
std::vector<TemplatePiece> cut_template(std::string_view source, const std::string& where);

}  // namespace deltatrain::serve
