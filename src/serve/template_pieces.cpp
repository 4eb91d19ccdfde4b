#include "serve/template_pieces.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace deltatrain::serve {

namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

class Cutter {
 public:
  Cutter(std::string_view source, const std::string& where) : where_(where) {
    if (source.size() > kMaxSourceBytes)
      fail("at most " + std::to_string(kMaxSourceBytes) + " bytes", std::to_string(source.size()));
    std::string text;  // every line end as \n, the last one dropped
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        text += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        text += source[i];
      }
    }
    if (text.ends_with('\n')) text.pop_back();
    cut(text);
  }

  std::vector<TemplatePiece> take() { return std::move(pieces_); }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw FormatError(error_text(where_, "line " + std::to_string(line_), expected, got));
  }

  void cut(const std::string& text) {
    size_t at = 0;
    bool strips_front = false;  // the mark before ended in "-"
    bool is_line_start = true;
    while (at < text.size()) {
      size_t open = at;
      while ((open = text.find('{', open)) != std::string::npos &&
             (open + 1 >= text.size() ||
              std::string_view("{%#").find(text[open + 1]) == std::string_view::npos))
        ++open;
      std::string before = text.substr(at, open == std::string::npos ? open : open - at);
      const char mark = open == std::string::npos ? 0 : text[open + 1];
      const char sign = mark != 0 && open + 2 < text.size() ? text[open + 2] : 0;
      const auto num_lines = static_cast<int>(std::ranges::count(before, '\n'));
      if (strips_front) before.erase(0, std::min(before.size(), first_non_space(before)));
      if (mark != 0 && sign == '-') {
        while (!before.empty() && is_space(before.back())) before.pop_back();
      } else if ((mark == '%' || mark == '#') && sign != '+') {
        // Blanks alone between the start of the line and the statement.
        const size_t line_end = before.rfind('\n');
        const size_t begin = line_end == std::string::npos ? 0 : line_end + 1;
        if ((line_end != std::string::npos || is_line_start) &&
            std::all_of(before.begin() + static_cast<std::ptrdiff_t>(begin), before.end(),
                        is_space))
          before.resize(begin);
      }
      if (!before.empty()) pieces_.push_back({TemplatePiece::Kind::kText, before, line_});
      line_ += num_lines;
      if (mark == 0) break;
      const bool has_sign = sign == '-' || (sign == '+' && mark != '{');
      const size_t begin = open + (has_sign ? 3 : 2);
      const std::string close = mark == '{' ? "}}" : mark == '%' ? "%}" : "#}";
      const size_t end = mark == '#' ? text.find(close, begin) : end_of_code(text, begin, close);
      if (end == std::string::npos) fail("\"" + close + "\"", "the end of the template");
      std::string inside = text.substr(begin, end - begin);
      const bool keeps_line = !inside.empty() && inside.back() == '+' && mark != '{';
      strips_front = !inside.empty() && inside.back() == '-';
      if (keeps_line || strips_front) inside.pop_back();
      if (mark != '#')
        pieces_.push_back(
            {mark == '{' ? TemplatePiece::Kind::kOutput : TemplatePiece::Kind::kStatement, inside,
             line_});
      line_ += static_cast<int>(std::ranges::count(inside, '\n'));
      at = end + 2;
      is_line_start = false;
      if (mark != '{' && !keeps_line && !strips_front && at < text.size() && text[at] == '\n') {
        ++at;
        ++line_;
        is_line_start = true;
      }
    }
  }

  static size_t first_non_space(const std::string& text) {
    return static_cast<size_t>(std::ranges::find_if_not(text, is_space) - text.begin());
  }

  // Where the mark stands that is not inside of a string.
  static size_t end_of_code(const std::string& text, size_t at, const std::string& close) {
    char quote = 0;
    int braces = 0;  // of maps, which may end beside the mark: {{ {'a': 1}}}
    for (; at < text.size(); ++at) {
      const char c = text[at];
      if (quote != 0) {
        if (c == '\\') ++at;
        if (c == quote) quote = 0;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '{') {
        ++braces;
      } else if (c == '}' && braces > 0) {
        --braces;
      } else if (text.compare(at, 2, close) == 0) {
        return at;
      }
    }
    return std::string::npos;
  }

  std::string where_;
  int line_ = 1;
  std::vector<TemplatePiece> pieces_;
};

}  // namespace

std::vector<TemplatePiece> cut_template(std::string_view source, const std::string& where) {
  // What a template's literals hold reaches functions that read well-formed text alone.
  const size_t bad = text::find_ill_formed_utf8(source);
  if (bad != std::string_view::npos) {
    const auto line = 1 + std::ranges::count(source.substr(0, bad), '\n');
    throw FormatError(error_text(where, "line " + std::to_string(line), "UTF-8",
                                 "an ill-formed byte at offset " + std::to_string(bad)));
  }
  return Cutter(source, where).take();
}

}  // namespace deltatrain::serve
