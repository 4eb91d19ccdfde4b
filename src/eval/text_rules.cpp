#include "eval/text_rules.h"

#include <cctype>
#include <optional>

#include "base/error.h"
#include "text/case_mapping.h"
#include "text/utf8.h"

namespace deltatrain::eval {

namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size())
    result.append(text, begin, at - begin).append(to);
  return result.append(text, begin);
}

// Takes white space off the inside of every pair "open ... close", from left to right; a pair ends
// at the first `close` after its `open`.
std::string strip_inside(std::string_view text, char open, char close) {
  std::string result;
  size_t begin = 0;
  while (true) {
    const size_t first = text.find(open, begin);
    const size_t last = first == std::string_view::npos ? first : text.find(close, first + 1);
    if (last == std::string_view::npos) return result.append(text, begin);
    result.append(text, begin, first + 1 - begin);
    result += text::strip(text.substr(first + 1, last - first - 1));
    result += close;
    begin = last + 1;
  }
}

// Literals of Python: lists, dictionaries with string keys and strings.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::vector<RaceProblem> problems() {
    std::vector<RaceProblem> result;
    list([&] { result.push_back(problem()); });
    blanks();
    if (at_ != text_.size()) fail("the end");
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw FormatError(error_text(
        where_, "problems: character " + std::to_string(at_), expected,
        at_ < text_.size() ? std::string("\"") + text_[at_] + "\"" : std::string("the end")));
  }

  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }

  bool accept(char c) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("\"") + c + "\"");
  }

  template <class Item>
  void list(const Item& item, char open = '[', char close = ']') {
    expect(open);
    while (!accept(close)) {
      item();
      if (!accept(',')) {
        expect(close);
        return;
      }
    }
  }

  RaceProblem problem() {
    RaceProblem result;
    bool has_question = false, has_answer = false;
    list(
        [&] {
          const std::string key = string();
          expect(':');
          if (key == "options") {
            result.options.clear();
            list([&] { result.options.push_back(string()); });
          } else if (key == "question") {
            result.question = string();
            has_question = true;
          } else if (key == "answer") {
            result.answer = string();
            has_answer = true;
          } else {
            fail("a key question, answer or options");
          }
        },
        '{', '}');
    if (!has_question || !has_answer || result.options.size() != 4)
      fail("question, answer and four options before it");
    if (result.answer.size() != 1 || result.answer[0] < 'A' || result.answer[0] > 'D')
      fail("an answer A, B, C or D before it");
    return result;
  }

  // `count` hexadecimal digits.
  std::optional<uint32_t> hexadecimal(size_t count) {
    if (text_.size() - at_ < count) return {};
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto c = static_cast<unsigned char>(text_[at_ + i]);
      if (std::isxdigit(c) == 0) return {};
      value = value * 16 +
              static_cast<uint32_t>(std::isdigit(c) != 0 ? c - '0' : std::tolower(c) - 'a' + 10);
    }
    at_ += count;
    return value;
  }

  void append_code_point(std::optional<uint32_t> value, std::string& out) const {
    if (!value || *value > 0x10ffff || (*value >= 0xd800 && *value < 0xe000))
      fail("the digits of a character before it");
    text::append_utf8(*value, out);
  }

  std::string string() {
    blanks();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail("a string");
    const char quote = text_[at_++];
    std::string result;
    while (true) {
      if (at_ >= text_.size()) fail("a closing quote");
      const char c = text_[at_++];
      if (c == quote) return result;
      if (c != '\\') {
        result += c;
        continue;
      }
      if (at_ >= text_.size()) fail("a closing quote");
      escape(result);
    }
  }

  // What follows a backslash.
  void escape(std::string& out) {
    constexpr std::string_view kNames = "\\'\"nrtabfv";
    constexpr std::string_view kValues = "\\'\"\n\r\t\a\b\f\v";
    const char c = text_[at_++];
    if (const size_t at = kNames.find(c); at != std::string_view::npos) {
      out += kValues[at];
    } else if (c == 'x') {
      append_code_point(hexadecimal(2), out);
    } else if (c == 'u') {
      append_code_point(hexadecimal(4), out);
    } else if (c == 'U') {
      append_code_point(hexadecimal(8), out);
    } else if (c >= '0' && c <= '7') {
      auto value = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
        value = value * 8 + static_cast<uint32_t>(text_[at_++] - '0');
      append_code_point(value, out);
    } else if (c != '\n') {  // a line that goes on
      out += '\\';
      out += c;
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

std::string clean_hellaswag(std::string_view text) {
  const std::string titled = replace_all(text::strip(text), " [title]", ". ");
  std::string bare;
  for (size_t i = 0; i < titled.size(); ++i) {
    if (titled[i] == '[') {
      const size_t end = titled.find_first_of("]\n", i + 1);
      if (end != std::string::npos && titled[end] == ']') {
        i = end;
        continue;
      }
    }
    bare += titled[i];
  }
  return replace_all(bare, "  ", " ");
}

std::string detokenize_wikitext(std::string_view page) {
  std::string text = replace_all(page, "s '", "s'");
  // A quirk of the harness's: this expression was meant to match years.
  for (size_t at = 0; (at = text.find("/' ", at)) != std::string::npos; ++at) {
    if (at + 4 < text.size() && text[at + 3] >= '0' && text[at + 3] <= '9' && text[at + 4] == '/') {
      const std::string_view to = "/'[0-9]/";
      text.replace(at, 5, to);
      at += to.size() - 1;
    }
  }
  constexpr std::string_view kSeparators[][2] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."},
                                                 {" : ", ": "},  {" ; ", "; "},  {" . ", ". "},
                                                 {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
  for (const auto& [from, to] : kSeparators) text = replace_all(text, from, to);
  constexpr char kPairs[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
  for (const auto& [open, close] : kPairs) text = strip_inside(text, open, close);
  constexpr std::string_view kRest[][2] = {{"= = = =", "===="},    {"= = =", "==="}, {"= =", "=="},
                                           {" \u00b0 ", "\u00b0"}, {" \n", "\n"},    {"\n ", "\n"},
                                           {" N ", " 1 "},         {" 's", "'s"}};
  for (const auto& [from, to] : kRest) text = replace_all(text, from, to);
  return text;
}

int64_t count_wikitext_words(std::string_view page) {
  int64_t runs = 0;
  bool in_run = false;
  for (const char* p = page.data(); p < page.data() + page.size();) {
    const bool space = text::is_python_space(text::next_code_point(p));
    if (space && !in_run) ++runs;
    in_run = space;
  }
  return runs + 1;
}

std::vector<RaceProblem> parse_race_problems(std::string_view literal, const std::string& where) {
  std::vector<RaceProblem> problems = LiteralReader(literal, where).problems();
  if (problems.empty())
    throw FormatError(error_text(where, "problems", "one question or more", "none"));
  return problems;
}

std::string race_context(std::string_view article, const std::vector<RaceProblem>& problems,
                         int version) {
  constexpr std::string_view kBlank = "  _  .";  // where the answer of a cloze goes
  std::string context = "Article: " + std::string(article) + "\n\n";
  for (size_t i = 0; i + 1 < problems.size(); ++i) {
    const RaceProblem& problem = problems[i];
    const std::string& answer = problem.options[static_cast<size_t>(problem.answer[0] - 'A')];
    if (problem.question.ends_with(kBlank)) {
      const size_t cut = problem.question.size() - (kBlank.size() - 1);
      context += (version == 2 ? problem.question.substr(cut) : problem.question.substr(0, cut)) +
                 answer + "\n";
    } else {
      context += "Question: " + problem.question + "\nAnswer: " + answer + "\n";
    }
  }
  return context + problems.back().question;
}

}  // namespace deltatrain::eval
