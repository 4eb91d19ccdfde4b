#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "base/error.h"
#include "text/regex.h"
#include "text/regex_classes.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

class Translator {
 public:
  explicit Translator(std::string_view source) : source_(source) {}

  std::string run() {
    while (at_ < source_.size()) step();
    if (!groups_.empty()) malformed("a closing parenthesis");
    return std::move(out_);
  }

 private:
  std::string place() const {
    return "regular expression \"" + std::string(source_) + "\": offset " + std::to_string(at_);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw UnsupportedError(
        error_text(place(), "", "what docs/formats/tokenizer.md says is understood", what));
  }
  [[noreturn]] void malformed(const std::string& expected) const {
    const std::string_view rest = source_.substr(std::min(at_, source_.size()));
    throw FormatError(
        error_text(place(), "", expected, rest.empty() ? "the end" : "\"" + std::string(rest) + "\""));
  }

  bool has(size_t n = 1) const { return at_ + n <= source_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

  // One atom, operator or quantifier outside of a class.
  void step() {
    const char c = source_[at_];
    switch (c) {
      case '\\':
        atom_ = out_.size();
        escape();
        return;
      case '[':
        atom_ = out_.size();
        out_ += character_class();
        return;
      case '(':
        open_group();
        return;
      case ')':
        if (groups_.empty()) malformed("an opening parenthesis before");
        atom_ = groups_.back();
        groups_.pop_back();
        out_ += c;
        ++at_;
        return;
      case '|':
        atom_.reset();
        out_ += c;
        ++at_;
        return;
      case '*':
      case '+':
      case '?':
        if (!atom_) malformed("something to repeat");
        out_ += c;
        ++at_;
        if (peek() == '?' || peek() == '+') out_ += source_[at_++];
        if (peek() == '*' || peek() == '+' || peek() == '?') unsupported("a repeated quantifier");
        return;
      case '{':
        interval();
        return;
      default:
        atom_ = out_.size();
        const char* p = source_.data() + at_;
        next_code_point(p);
        const auto bytes = static_cast<size_t>(p - source_.data()) - at_;
        if (c == '#' || c == ' ') out_ += '\\';  // plain even where PCRE2 were to skip them
        out_ += source_.substr(at_, bytes);
        at_ += bytes;
    }
  }

  void interval() {
    size_t i = at_ + 1;
    const auto number = [&] {
      std::string digits;
      while (i < source_.size() && std::isdigit(static_cast<unsigned char>(source_[i])) != 0) digits += source_[i++];
      return digits;
    };
    const std::string low = number();
    bool comma = false;
    std::string high;
    if (i < source_.size() && source_[i] == ',') {
      comma = true;
      ++i;
      high = number();
    }
    if (i >= source_.size() || source_[i] != '}' || (low.empty() && high.empty())) {
      atom_ = out_.size();
      out_ += "\\{";  // a literal brace
      ++at_;
      return;
    }
    if (!atom_) malformed("something to repeat");
    at_ = i + 1;
    out_ += "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
    const char next = peek();
    if (next == '+' || (next == '?' && !comma)) {
      // Not possessive and not lazy here: the repetition as a whole is repeated, or optional.
      out_.insert(*atom_, "(?:");
      out_ += ")";
      out_ += next;
      ++at_;
    } else if (next == '?') {
      out_ += next;
      ++at_;
    }
    if (peek() == '*' || peek() == '+' || peek() == '?') unsupported("a repeated quantifier");
  }

  void open_group() {
    const size_t begin = out_.size();
    if (peek(1) != '?') {
      out_ += '(';
      ++at_;
      groups_.push_back(begin);
      atom_.reset();
      return;
    }
    static constexpr std::array<std::string_view, 6> kPlain = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    for (const std::string_view plain : kPlain) {
      if (source_.substr(at_).starts_with(plain)) {
        out_ += plain;
        at_ += plain.size();
        groups_.push_back(begin);
        atom_.reset();
        return;
      }
    }
    if (peek(2) == '#') {
      while (has() && peek() != ')') ++at_;
      if (!has()) malformed("the end of the comment");
      ++at_;
      return;
    }
    // (?imx-imx) and (?imx-imx:
    out_ += "(?";
    at_ += 2;
    while (has() && peek() != ')' && peek() != ':') {
      const char c = peek();
      if (c == 'i' || c == '-') {
        out_ += c;
      } else if (c == 'm') {
        out_ += 's';
      } else {
        unsupported("the group (?" + std::string(1, c));
      }
      ++at_;
    }
    if (!has()) malformed("the end of the group");
    const bool whole = peek() == ':';
    out_ += source_[at_++];
    if (whole) {
      groups_.push_back(begin);
      atom_.reset();
    } else {
      // An option in the middle of an alternative would also reach over the "|" in one library but not in
      // the other's reading of groups; at the very start both agree.
      if (begin != 0) unsupported("an option group in the middle");
      atom_.reset();
    }
  }

  // A backslash outside of a class.
  void escape() {
    if (!has(2)) malformed("a character behind the backslash");
    const char c = peek(1);
    if (const auto set = class_escape()) {
      out_ += set->as_class();
      return;
    }
    switch (c) {
      case 'b':
      case 'B': {
        const std::string word = CharacterSet::word().as_class();
        const bool edge = c == 'b';
        out_ += "(?:(?<=" + word + ")(?" + (edge ? "!" : "=") + word + ")|(?<!" + word + ")(?" + (edge ? "=" : "!") +
                word + "))";
        at_ += 2;
        return;
      }
      case 'A':
      case 'z':
      case 'Z':
        out_ += source_.substr(at_, 2);
        at_ += 2;
        return;
      default:
        if (std::isdigit(static_cast<unsigned char>(c)) != 0) unsupported("a back reference");
        append_code_point(out_, literal_escape());
    }
  }

  // \s \S \d \D \w \W \h \H \p{..} \P{..} at at_, or nothing.
  std::optional<CharacterSet> class_escape() {
    const char c = peek(1);
    std::optional<CharacterSet> set;
    switch (c) {
      case 's':
      case 'S':
        set = CharacterSet::white_space();
        break;
      case 'd':
      case 'D':
        set = CharacterSet::property("Nd");
        break;
      case 'w':
      case 'W':
        set = CharacterSet::word();
        break;
      case 'h':
      case 'H':
        set = CharacterSet::hexadecimal();
        break;
      case 'p':
      case 'P': {
        if (peek(2) != '{') malformed("a property name in braces");
        const size_t close = source_.find('}', at_);
        if (close == std::string_view::npos) malformed("the end of the property name");
        std::string_view name = source_.substr(at_ + 3, close - at_ - 3);
        bool negated = c == 'P';
        if (name.starts_with('^')) {
          negated = !negated;
          name.remove_prefix(1);
        }
        set = CharacterSet::property(name);
        if (!set) unsupported("the property " + std::string(name));
        if (negated) set->negate();
        at_ = close + 1;
        return set;
      }
      default:
        return std::nullopt;
    }
    if (std::isupper(static_cast<unsigned char>(c)) != 0) set->negate();
    at_ += 2;
    return set;
  }

  // The character that an escape at at_ stands for.
  uint32_t literal_escape() {
    const char c = peek(1);
    at_ += 2;
    switch (c) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'a': return '\a';
      case 'e': return 0x1b;
      case 'x': return hexadecimal(2, true);
      case 'u': return hexadecimal(4, false);
      default: break;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      at_ -= 2;
      unsupported(std::string("\\") + c);
    }
    at_ -= 1;
    const char* p = source_.data() + at_;
    const uint32_t value = next_code_point(p);
    at_ = static_cast<size_t>(p - source_.data());
    return value;
  }

  uint32_t hexadecimal(int digits, bool braces) {
    const bool braced = braces && peek() == '{';
    if (braced) ++at_;
    uint32_t value = 0;
    int count = 0;
    while (has() && std::isxdigit(static_cast<unsigned char>(peek())) != 0 && count < (braced ? 6 : digits)) {
      const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(source_[at_++])));
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
      ++count;
    }
    if (count == 0 || (braced && peek() != '}') || value >= kNumCodePoints || (value >= 0xd800 && value < 0xe000)) {
      malformed("a code point in hexadecimal");
    }
    if (!braced && value >= 0x80 && braces) unsupported("a byte above 7F as \\x");
    if (braced) ++at_;
    return value;
  }

  // A class in brackets at at_, as PCRE2 text.
  std::string character_class() {
    ++at_;
    bool negated = false;
    if (peek() == '^') {
      negated = true;
      ++at_;
    }
    std::string body;
    bool first = true;
    while (true) {
      if (!has()) malformed("the end of the class");
      if (peek() == ']' && !first) break;
      if (peek() == '[') unsupported("a class in a class");
      if (peek() == '&' && peek(1) == '&') unsupported("an intersection of classes");
      first = false;
      if (peek() == '\\') {
        if (!has(2)) malformed("a character behind the backslash");
        if (const auto set = class_escape()) {
          body += set->as_items();
          if (peek() == '-' && peek(1) != ']') unsupported("a range from a class");
          continue;
        }
      }
      const uint32_t low = class_character();
      if (peek() == '-' && peek(1) != ']' && has(2)) {
        ++at_;
        if (peek() == '[') unsupported("a class in a class");
        if (peek() == '\\' && std::string_view("sSdDwWhHpP").find(peek(1)) != std::string_view::npos) {
          unsupported("a range to a class");
        }
        const uint32_t high = class_character();
        if (high < low) malformed("a range in ascending order");
        append_code_point(body, low);
        body += '-';
        append_code_point(body, high);
      } else {
        append_code_point(body, low);
      }
    }
    ++at_;
    return std::string(negated ? "[^" : "[") + body + "]";
  }

  uint32_t class_character() {
    if (peek() == '\\') {
      if (peek(1) == 'b') {
        at_ += 2;
        return 0x08;
      }
      if (std::isdigit(static_cast<unsigned char>(peek(1))) != 0) unsupported("an octal number");
      return literal_escape();
    }
    const char* p = source_.data() + at_;
    const uint32_t value = next_code_point(p);
    at_ = static_cast<size_t>(p - source_.data());
    return value;
  }

  std::string_view source_;
  size_t at_ = 0;
  std::string out_;
  std::vector<size_t> groups_;   // starts of the open groups in out_
  std::optional<size_t> atom_;   // start of what a quantifier would repeat
};

}  // namespace

std::string translate_regex(std::string_view oniguruma) { return Translator(oniguruma).run(); }

}  // namespace deltatrain::text
