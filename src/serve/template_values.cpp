#include "serve/template_values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "text/case_mapping.h"
#include "text/utf8.h"

namespace deltatrain::serve {

namespace {

using Value = TemplateValue;
using Arguments = TemplateArguments;

constexpr size_t kMaxTextBytes = size_t{16} << 20;  // that an operation makes of shorter ones

[[noreturn]] void fail(const std::string& what, const std::string& expected, const Value& got) {
  throw FormatError(
      error_text("", what, expected, is_undefined(got) ? "nothing" : got.type_name()));
}

void check_size(size_t bytes) {
  if (bytes > kMaxTextBytes)
    throw FormatError(error_text("", "text", "at most " + std::to_string(kMaxTextBytes) + " bytes",
                                 std::to_string(bytes)));
}

const std::string& text_of(const std::string& what, const Value& value) {
  if (!value.is_string()) fail(what, "a string", value);
  return value.get_ref<const std::string&>();
}

int64_t integer_of(const std::string& what, const Value& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number_integer()) fail(what, "a whole number", value);
  return value.get<int64_t>();
}

bool is_number(const Value& value) { return value.is_number() || value.is_boolean(); }
double number_of(const Value& value) {
  return value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
}

std::vector<std::string> characters_of(const std::string& text) {
  std::vector<std::string> characters;
  for (const char* p = text.data(); p < text.data() + text.size();) {
    const char* const begin = p;
    text::next_code_point(p);
    characters.emplace_back(begin, p);
  }
  return characters;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  std::string result(text, end.ptr);
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

// repr() in Python.
std::string shown(const Value& value) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const char quote =
        text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
    std::string result(1, quote);
    for (const char c : text) {
      if (c == quote || c == '\\') {
        result += '\\';
        result += c;
      } else if (c == '\n') {
        result += "\\n";
      } else if (c == '\r') {
        result += "\\r";
      } else if (c == '\t') {
        result += "\\t";
      } else {
        result += c;
      }
    }
    return result + quote;
  }
  if (value.is_array()) {
    std::string result = "[";
    for (const Value& item : value) result += (result.size() > 1 ? ", " : "") + shown(item);
    return result + "]";
  }
  if (value.is_object()) {
    std::string result = "{";
    for (const auto& [key, item] : value.items())
      result += (result.size() > 1 ? ", " : "") + shown(key) + ": " + shown(item);
    return result + "}";
  }
  return to_text(value);
}

// json.dumps in Python, without escapes of what is not ASCII.
std::string python_json(const Value& value, int64_t indent, int64_t level) {
  if (!value.is_array() && !value.is_object()) {
    if (is_undefined(value)) fail("tojson", "a value", value);
    if (value.is_number_float()) return float_text(value.get<double>());
    return value.dump(-1, ' ', false, Value::error_handler_t::replace);
  }
  const char open = value.is_array() ? '[' : '{', close = value.is_array() ? ']' : '}';
  if (value.empty()) return {open, close};
  const auto line = [&](int64_t at) {
    return indent < 0 ? std::string() : "\n" + std::string(static_cast<size_t>(at * indent), ' ');
  };
  std::string result(1, open);
  bool is_first = true;
  for (const auto& [key, item] : value.items()) {
    if (!is_first) result += indent < 0 ? ", " : ",";
    is_first = false;
    result += line(level + 1);
    if (value.is_object())
      result += Value(key).dump(-1, ' ', false, Value::error_handler_t::replace) + ": ";
    result += python_json(item, indent, level + 1);
  }
  return result + line(level) + close;
}

bool contains(const Value& container, const Value& value) {
  if (container.is_string())
    return container.get_ref<const std::string&>().find(text_of("in", value)) != std::string::npos;
  if (container.is_object())
    return value.is_string() && container.contains(value.get<std::string>());
  if (container.is_array()) return std::ranges::find(container, value) != container.end();
  if (is_undefined(container)) return false;
  fail("in", "a string, list or map on the right", container);
}

Value arithmetic(const std::string& name, const Value& a, const Value& b) {
  if (name == "+" && a.is_string() && b.is_string())
    return a.get<std::string>() + b.get<std::string>();
  if (name == "+" && a.is_array() && b.is_array()) {
    Value result = a;
    for (const Value& item : b) result.push_back(item);
    return result;
  }
  if (name == "*" && a.is_string() && b.is_number_integer()) {
    const int64_t count = std::max<int64_t>(0, b.get<int64_t>());
    std::string result;
    for (int64_t i = 0; i < count; ++i) {
      result += a.get_ref<const std::string&>();
      check_size(result.size());
      if (result.empty()) break;
    }
    return result;
  }
  if (!is_number(a)) fail(name, "numbers, or two values of one kind", a);
  if (!is_number(b)) fail(name, "numbers, or two values of one kind", b);
  const double x = number_of(a), y = number_of(b);
  if ((name == "/" || name == "//" || name == "%") && y == 0)
    fail(name, "a divisor other than 0", b);
  if (name == "/") return x / y;
  if (a.is_number_float() || b.is_number_float()) {
    if (name == "+") return x + y;
    if (name == "-") return x - y;
    if (name == "*") return x * y;
    if (name == "//") return std::floor(x / y);
    return x - y * std::floor(x / y);
  }
  const int64_t m = integer_of(name, a), n = integer_of(name, b);
  int64_t result = 0;
  bool overflows = false;
  if (name == "+") overflows = __builtin_add_overflow(m, n, &result);
  if (name == "-") overflows = __builtin_sub_overflow(m, n, &result);
  if (name == "*") overflows = __builtin_mul_overflow(m, n, &result);
  if (name == "//" || name == "%") {
    if (n == -1) {  // the one divisor whose quotient may not fit
      overflows = name == "//" && __builtin_sub_overflow(int64_t{0}, m, &result);
    } else {
      const int64_t rest = m % n;
      const bool rounds_down = rest != 0 && (rest < 0) != (n < 0);  // a rest has the divisor's sign
      if (name == "%") result = rounds_down ? rest + n : rest;
      if (name == "//") result = rounds_down ? m / n - 1 : m / n;
    }
  }
  if (overflows) fail(name, "a result of 64 bits", a);
  return result;
}

enum class Side : uint8_t { kFront, kBack, kBoth };

std::string strip(const std::string& text, const Value& characters, Side side) {
  if (is_undefined(characters) || characters.is_null()) {
    std::string_view view = text;
    if (side != Side::kFront) view = text::strip_back(view);
    if (side != Side::kBack) view = text::strip_front(view);
    return std::string(view);
  }
  const std::vector<std::string> set = characters_of(text_of("strip", characters));
  std::vector<std::string> list = characters_of(text);
  const auto is_in = [&](const std::string& c) { return std::ranges::find(set, c) != set.end(); };
  size_t begin = 0, end = list.size();
  while (side != Side::kBack && begin < end && is_in(list[begin])) ++begin;
  while (side != Side::kFront && end > begin && is_in(list[end - 1])) --end;
  std::string result;
  for (size_t i = begin; i < end; ++i) result += list[i];
  return result;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) throw FormatError(error_text("", "replace", "a text to replace", "none"));
  std::string result;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size())
    check_size((result += text.substr(at, found - at) + to).size());
  return result + text.substr(at);
}

std::vector<Value> split(const std::string& text, const Value& separator, const Value& count) {
  const int64_t most = is_undefined(count) ? -1 : integer_of("split", count);
  std::vector<Value> parts;
  size_t at = 0;
  if (is_undefined(separator) || separator.is_null()) {
    const std::string stripped = strip(text, undefined_value(), Side::kFront);
    while (at < stripped.size()) {
      const size_t end = most >= 0 && static_cast<int64_t>(parts.size()) == most
                             ? std::string::npos
                             : stripped.find_first_of(" \t\n\r\v\f", at);
      parts.emplace_back(strip(stripped.substr(at, end - at), undefined_value(), Side::kBack));
      if (end == std::string::npos) break;
      at = stripped.find_first_not_of(" \t\n\r\v\f", end);
      if (at == std::string::npos) break;
    }
    return parts;
  }
  const std::string& mark = text_of("split", separator);
  if (mark.empty()) fail("split", "a separator", separator);
  for (size_t found; (most < 0 || static_cast<int64_t>(parts.size()) < most) &&
                     (found = text.find(mark, at)) != std::string::npos;
       at = found + mark.size())
    parts.emplace_back(text.substr(at, found - at));
  parts.emplace_back(text.substr(at));
  return parts;
}

bool starts_or_ends(const std::string& text, const Value& with, bool at_start) {
  if (with.is_array())
    return std::ranges::any_of(
        with, [&](const Value& item) { return starts_or_ends(text, item, at_start); });
  const std::string& part = text_of(at_start ? "startswith" : "endswith", with);
  return at_start ? text.starts_with(part) : text.ends_with(part);
}

std::string to_upper(const std::string& text) {
  std::string result;
  for (const std::string& c : characters_of(text)) {
    // A title case of several letters, such as Ss, has small ones.
    for (const std::string& part : characters_of(text::capitalize(c)))
      result += text::capitalize(part);
  }
  return result;
}

// Words in title case: of letters, as Python's method, or of what is not one of the filter's marks.
std::string to_title(const std::string& text, bool is_filter) {
  std::string result, word;
  const auto end_word = [&] {
    if (!word.empty()) result += text::capitalize(word);
    word.clear();
  };
  for (const std::string& c : characters_of(text)) {
    const bool is_in_word =
        is_filter
            ? c.size() > 1 || std::string_view(" \t\n\r\v\f-({[<").find(c) == std::string::npos
            : c.size() > 1 || std::isalpha(static_cast<unsigned char>(c[0])) != 0;
    if (is_in_word) {
      word += c;
    } else {
      end_word();
      result += c;
    }
  }
  end_word();
  return result;
}

std::string with_case(const std::string& text, const std::string& name, bool is_filter) {
  if (name == "upper") return to_upper(text);
  if (name == "lower") return text::capitalize("x" + text).substr(1);
  if (name == "capitalize") return text::capitalize(text);
  return to_title(text, is_filter);
}

Value pairs_of(const Value& map) {
  Value result = Value::array();
  for (const auto& [key, item] : map.items()) result.push_back(Value::array({key, item}));
  return result;
}

Value length_of(const Value& value) {
  if (value.is_string()) return text::num_code_points(value.get_ref<const std::string&>());
  if (value.is_array() || value.is_object()) return static_cast<int64_t>(value.size());
  if (is_undefined(value)) return int64_t{0};
  fail("length", "a string, list or map", value);
}

// selectattr and its like: whether an element is meant.
bool is_selected(const Value& element, const Arguments& arguments, bool by_attribute) {
  const Value tested = by_attribute ? item_of(element, arguments.get(0, "attribute")) : element;
  const size_t first = by_attribute ? 1 : 0;
  const Value test = arguments.get(first, "test");
  if (is_undefined(test)) return is_true(tested);
  Arguments rest;
  for (size_t i = first + 1; i < arguments.values.size(); ++i)
    rest.values.push_back(arguments.values[i]);
  return apply_test(text_of("test", test), tested, rest);
}

// The filter `int`: towards 0, texts of fractions too; what is no number is the default. Numbers
// beyond 64 bits, which Python has, are refused.
Value whole_number(const Value& value, const Arguments& arguments) {
  const Value base = arguments.get(1, "base"), given = arguments.get(0, "default");
  if (!is_undefined(base) && base != 10) fail("int", "base 10", base);
  const Value otherwise = is_undefined(given) ? Value(int64_t{0}) : given;
  if (is_number(value) && !value.is_number_float()) return integer_of("int", value);
  double number = 0;
  if (value.is_number_float()) {
    number = value.get<double>();
    if (std::isinf(number)) fail("int", "a finite number", value);
  } else {
    if (!value.is_string()) return otherwise;
    const std::string text = strip(to_text(value), undefined_value(), Side::kBoth);
    const char* const end = text.data() + text.size();
    const char* const begin = text.data() + (text.size() > 1 && text[0] == '+' && text[1] != '-');
    int64_t whole = 0;
    const auto as_whole = std::from_chars(begin, end, whole);
    if (as_whole.ptr == end && as_whole.ec == std::errc()) return whole;
    const auto as_number = std::from_chars(begin, end, number);
    if (as_number.ptr != end || as_number.ec == std::errc::invalid_argument) return otherwise;
    if (as_number.ec != std::errc()) number = std::strtod(begin, nullptr);  // infinite or nearly 0
    if (std::isinf(number)) return otherwise;
  }
  if (std::isnan(number)) return otherwise;
  if (!(std::fabs(number) < 0x1p63)) fail("int", "a whole number of 64 bits", value);
  return static_cast<int64_t>(number);
}

}  // namespace

Value Arguments::get(size_t index, const char* name) const {
  if (index < values.size()) return values[index];
  for (const auto& [keyword, value] : keywords) {
    if (keyword == name) return value;
  }
  return undefined_value();
}

bool is_true(const Value& value) {
  if (is_undefined(value) || value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

std::string to_text(const Value& value) {
  if (is_undefined(value)) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) return float_text(value.get<double>());
  if (value.is_number()) return value.dump();
  return shown(value);
}

Value apply_operator(const std::string& name, const Value& a, const Value& b) {
  if (name == "==" || name == "!=") {
    const bool are_equal = is_undefined(a) || is_undefined(b) ? is_undefined(a) && is_undefined(b)
                           : is_number(a) && is_number(b)     ? number_of(a) == number_of(b)
                                                              : a == b;
    return are_equal == (name == "==");
  }
  if (name == "in") return contains(b, a);
  if (name == "not in") return !contains(b, a);
  if (name == "~") return to_text(a) + to_text(b);
  if (name == "<" || name == ">" || name == "<=" || name == ">=") {
    const bool fits = (is_number(a) && is_number(b)) || (a.is_string() && b.is_string());
    if (!fits) fail(name, "two numbers or two strings", is_number(a) || a.is_string() ? b : a);
    const int order = a.is_string()
                          ? a.get_ref<const std::string&>().compare(b.get_ref<const std::string&>())
                      : number_of(a) < number_of(b) ? -1
                      : number_of(a) > number_of(b) ? 1
                                                    : 0;
    if (name == "<") return order < 0;
    if (name == ">") return order > 0;
    return name == "<=" ? order <= 0 : order >= 0;
  }
  return arithmetic(name, a, b);
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  if (name == "trim") return strip(to_text(value), arguments.get(0, "chars"), Side::kBoth);
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
    return with_case(to_text(value), name, true);
  if (name == "length" || name == "count") return length_of(value);
  if (name == "string" || name == "safe") return to_text(value);
  if (name == "default" || name == "d") {
    const bool also_false = is_true(arguments.get(1, "boolean"));
    const bool is_given = also_false ? is_true(value) : !is_undefined(value);
    if (is_given) return value;
    const Value other = arguments.get(0, "default_value");
    return is_undefined(other) ? Value("") : other;
  }
  if (name == "tojson") {
    const Value indent = arguments.get(0, "indent");
    const bool is_flat = is_undefined(indent) || indent.is_null();
    if (!is_flat && (integer_of("tojson", indent) < 0 || integer_of("tojson", indent) > 16))
      fail("tojson", "an indent from 0 to 16", indent);
    return python_json(value, is_flat ? -1 : integer_of("tojson", indent), 0);
  }
  if (name == "join") {
    const Value mark = arguments.get(0, "d");
    const Value attribute = arguments.get(1, "attribute");
    std::string result;
    bool is_first = true;
    for (const Value& item : elements_of(value)) {
      if (!is_first && !is_undefined(mark)) result += to_text(mark);
      check_size(result.size());
      is_first = false;
      result += to_text(is_undefined(attribute) ? item : item_of(item, attribute));
    }
    return result;
  }
  if (name == "replace")
    return replaced(to_text(value), text_of("replace", arguments.get(0, "s")),
                    text_of("replace", arguments.get(1, "new")));
  if (name == "first" || name == "last") {
    const std::vector<Value> items = elements_of(value);
    if (items.empty()) return undefined_value();
    return name == "first" ? items.front() : items.back();
  }
  if (name == "list") return Value(elements_of(value));
  if (name == "reverse") {
    std::vector<Value> items = elements_of(value);
    std::ranges::reverse(items);
    return Value(items);
  }
  if (name == "items") {
    if (is_undefined(value)) return Value::array();
    if (!value.is_object()) fail("items", "a map", value);
    return pairs_of(value);
  }
  if (name == "int") return whole_number(value, arguments);
  if (name == "abs") {
    if (value.is_number_float()) return std::fabs(value.get<double>());
    if (!is_number(value)) fail("abs", "a number", value);
    const int64_t whole = integer_of("abs", value);
    if (whole == INT64_MIN) fail("abs", "a result of 64 bits", value);
    return std::abs(whole);
  }
  if (name == "map" || name == "select" || name == "reject" || name == "selectattr" ||
      name == "rejectattr") {
    Value result = Value::array();
    for (const Value& item : elements_of(value)) {
      if (name == "map") {
        const Value attribute = arguments.get(99, "attribute");
        if (!is_undefined(attribute)) {
          result.push_back(item_of(item, attribute));
        } else {
          Arguments rest;
          for (size_t i = 1; i < arguments.values.size(); ++i)
            rest.values.push_back(arguments.values[i]);
          result.push_back(apply_filter(text_of("map", arguments.get(0, "name")), item, rest));
        }
      } else if (is_selected(item, arguments, name.ends_with("attr")) ==
                 name.starts_with("select")) {
        result.push_back(item);
      }
    }
    return result;
  }
  throw FormatError(error_text("", "filter", "one that docs/serving.md lists", name));
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto other = [&] { return arguments.get(0, "other"); };
  if (name == "defined") return !is_undefined(value);
  if (name == "undefined") return is_undefined(value);
  if (name == "none") return value.is_null();
  if (name == "string") return value.is_string();
  if (name == "number") return is_number(value);
  if (name == "integer") return value.is_number_integer();
  if (name == "float") return value.is_number_float();
  if (name == "boolean") return value.is_boolean();
  if (name == "true") return value.is_boolean() && value.get<bool>();
  if (name == "false") return value.is_boolean() && !value.get<bool>();
  if (name == "mapping") return value.is_object();
  if (name == "sequence" || name == "iterable")
    return value.is_array() || value.is_object() || value.is_string() || is_undefined(value);
  if (name == "odd") return integer_of("odd", value) % 2 != 0;
  if (name == "even") return integer_of("even", value) % 2 == 0;
  if (name == "divisibleby") return !is_true(apply_operator("%", value, other()));
  if (name == "in") return contains(other(), value);
  if (name == "eq" || name == "equalto" || name == "sameas")
    return is_true(apply_operator("==", value, other()));
  if (name == "ne") return is_true(apply_operator("!=", value, other()));
  throw FormatError(error_text("", "test", "one that docs/serving.md lists", name));
}

Value call_method(const std::string& name, const Value& value, const Arguments& arguments) {
  const Value first = arguments.get(0, ""), second = arguments.get(1, "");
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (name == "strip") return strip(text, first, Side::kBoth);
    if (name == "lstrip") return strip(text, first, Side::kFront);
    if (name == "rstrip") return strip(text, first, Side::kBack);
    if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
      return with_case(text, name, false);
    if (name == "startswith" || name == "endswith")
      return starts_or_ends(text, first, name == "startswith");
    if (name == "split") return Value(split(text, first, second));
    if (name == "replace")
      return replaced(text, text_of("replace", first), text_of("replace", second));
    if (name == "removeprefix" || name == "removesuffix") {
      const std::string& part = text_of(name, first);
      if (name == "removeprefix") return text.starts_with(part) ? text.substr(part.size()) : text;
      return text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text;
    }
    if (name == "find") {
      const size_t at = text.find(text_of("find", first));
      if (at == std::string::npos) return int64_t{-1};
      return static_cast<int64_t>(characters_of(text.substr(0, at)).size());
    }
    if (name == "join") {
      std::string result;
      bool is_first = true;
      for (const Value& item : elements_of(first)) {
        if (!is_first) result += text;
        check_size(result.size());
        is_first = false;
        result += text_of("join", item);
      }
      return result;
    }
  }
  if (value.is_object()) {
    if (name == "items") return pairs_of(value);
    if (name == "get") {
      const Value found = item_of(value, first);
      if (!is_undefined(found)) return found;
      return is_undefined(second) ? Value(nullptr) : second;
    }
    if (name == "keys" || name == "values") {
      Value result = Value::array();
      for (const auto& [key, item] : value.items())
        result.push_back(name == "keys" ? Value(key) : item);
      return result;
    }
  }
  throw FormatError(error_text(
      "", std::string("method of ") + (is_undefined(value) ? "nothing" : value.type_name()),
      "one that docs/serving.md lists", name));
}

Value item_of(const Value& value, const Value& index) {
  if (is_undefined(value)) fail("attribute " + to_text(index), "a value that has it", value);
  if (value.is_object()) {
    if (!index.is_string()) return undefined_value();
    const auto found = value.find(index.get<std::string>());
    return found == value.end() ? undefined_value() : *found;
  }
  if (!index.is_number_integer()) return undefined_value();
  int64_t at = index.get<int64_t>();
  const Value characters = value.is_string() ? Value(elements_of(value)) : Value();
  const Value& items = value.is_string() ? characters : value;
  if (!items.is_array()) return undefined_value();
  const auto size = static_cast<int64_t>(items.size());
  if (at < 0) at += size;
  return at < 0 || at >= size ? undefined_value() : items[static_cast<size_t>(at)];
}

Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (!value.is_array() && !value.is_string()) fail("slice", "a list or a string", value);
  const std::vector<Value> items = elements_of(value);
  const auto size = static_cast<int64_t>(items.size());
  const auto given = [](const Value& bound) { return !is_undefined(bound) && !bound.is_null(); };
  const int64_t stride = given(step) ? integer_of("slice", step) : 1;
  if (stride == 0 || stride == INT64_MIN) fail("slice", "a step other than 0", step);
  const auto bound = [&](const Value& of, int64_t otherwise) {
    if (!given(of)) return otherwise;
    int64_t at = std::clamp<int64_t>(integer_of("slice", of), -size - 1, size);
    if (at < 0) at += size;
    return std::clamp<int64_t>(at, stride > 0 ? 0 : -1, stride > 0 ? size : size - 1);
  };
  const int64_t first = bound(begin, stride > 0 ? 0 : size - 1);
  const int64_t last = bound(end, stride > 0 ? size : -1);
  Value list = Value::array();
  std::string text;
  for (int64_t at = first; stride > 0 ? at < last : at > last; at += stride) {
    const Value& item = items[static_cast<size_t>(at)];
    if (value.is_string()) {
      text += item.get_ref<const std::string&>();
    } else {
      list.push_back(item);
    }
    if (std::abs(stride) > size) break;
  }
  return value.is_string() ? Value(text) : list;
}

std::vector<Value> elements_of(const Value& value) {
  std::vector<Value> result;
  if (value.is_array()) {
    result.assign(value.begin(), value.end());
  } else if (value.is_object()) {
    for (const auto& item : value.items()) result.emplace_back(item.key());
  } else if (value.is_string()) {
    for (std::string& c : characters_of(value.get<std::string>()))
      result.emplace_back(std::move(c));
  } else if (!is_undefined(value)) {
    fail("loop", "a list, a map or a string", value);
  }
  return result;
}

}  // namespace deltatrain::serve
