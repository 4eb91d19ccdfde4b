#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_classes.h"

#include <pcre2.h>

#include <array>
#include <cctype>
#include <cstdio>
#include <map>
#include <mutex>

#include "base/check.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

// For every code point whether PCRE2 counts it to the class text, such as "\p{L}". The library's Unicode
// version is the system's choice, so it is asked.
const std::vector<bool>& native_members(const std::string& item) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<bool>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  auto [entry, is_new] = known.try_emplace(item);
  if (!is_new) return entry->second;
  std::vector<bool>& members = entry->second;
  members.assign(kNumCodePoints, false);
  // One search over all code points in order; each match is a run of members.
  std::string text;
  std::vector<size_t> offsets;
  std::vector<uint32_t> code_points;
  for (uint32_t c = 0; c < kNumCodePoints; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    offsets.push_back(text.size());
    code_points.push_back(c);
    append_utf8(c, text);
  }
  offsets.push_back(text.size());
  const std::string pattern = "[" + item + "]+";
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr);
  DELTATRAIN_CHECK(code != nullptr, pattern);
  pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
  size_t at = 0, next = 0;
  while (at < text.size() && pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                         PCRE2_NO_UTF_CHECK, data, nullptr) > 0) {
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data);
    while (offsets[next] < found[0]) ++next;
    for (; offsets[next] < found[1]; ++next) members[code_points[next]] = true;
    at = found[1];
  }
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  return members;
}

bool is_known_to_library(const std::string& item) {
  const std::string pattern = "[" + item + "]";
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// "L" or "Lu" for the names that a category goes by; empty for others.
std::string category_of_name(std::string_view name) {
  static const std::map<std::string, std::string> kLongNames = {
      {"letter", "L"}, {"mark", "M"}, {"number", "N"}, {"punctuation", "P"}, {"symbol", "S"}, {"separator", "Z"},
      {"other", "C"}, {"uppercaseletter", "Lu"}, {"lowercaseletter", "Ll"}, {"titlecaseletter", "Lt"},
      {"modifierletter", "Lm"}, {"otherletter", "Lo"}, {"decimalnumber", "Nd"}, {"spaceseparator", "Zs"},
  };
  std::string key;
  for (const char c : name) {
    if (c == '_' || c == ' ' || c == '-') continue;
    key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (const auto known = kLongNames.find(key); known != kLongNames.end()) return known->second;
  if (key.empty() || key.size() > 2) return "";
  key[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(key[0])));
  if (key.size() == 1) return std::string_view("LMNPSZC").find(key[0]) != std::string_view::npos ? key : "";
  for (int i = 0; i < kNumCategories; ++i) {
    if (category_name(static_cast<Category>(i)) == key) return key;
  }
  return "";
}

template <class Range>
std::string items(const std::vector<Range>& ranges) {
  std::string text;
  for (const Range& range : ranges) {
    append_code_point(text, range.first);
    if (range.last == range.first) continue;
    text += '-';
    append_code_point(text, range.last);
  }
  return text;
}

template <class Range>
void append(std::vector<Range>& ranges, uint32_t c) {
  if (!ranges.empty() && ranges.back().last + 1 == c) {
    ranges.back().last = c;
  } else {
    ranges.push_back({c, c});
  }
}

}  // namespace

void append_code_point(std::string& text, uint32_t code_point) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "\\x{%x}", code_point);
  text += buffer;
}

template <class Test>
CharacterSet CharacterSet::from_table(std::string_view native, const Test& test) {
  CharacterSet set;
  set.native_ = native;
  const std::vector<bool>* members = native.empty() ? nullptr : &native_members(set.native_);
  for (uint32_t c = 0; c < kNumCodePoints; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const bool in = test(c);
    if (in) append(set.ranges_, c);
    if (members == nullptr) continue;
    if (in && !(*members)[c]) append(set.missing_, c);
    if (!in && (*members)[c]) set.exact_ = false;
  }
  return set;
}

std::optional<CharacterSet> CharacterSet::property(std::string_view name) {
  const CodePoints code_points;
  if (const std::string category = category_of_name(name); !category.empty()) {
    return from_table("\\p{" + category + "}", [&](uint32_t c) {
      const std::string_view own = category_name(code_points.category(c));
      return category.size() == 1 ? own[0] == category[0] : own == category;
    });
  }
  if (name == "Alphabetic" || name == "Alpha") {
    return from_table("", [&](uint32_t c) { return code_points.is_alphabetic(c); });
  }
  static constexpr std::array<std::string_view, 12> kScripts = {
      "Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Thai", "Devanagari",
      "Bengali"};
  for (const std::string_view script : kScripts) {
    // The expression's scripts are the library's own: there is no table of them here.
    const std::string item = "\\p{" + std::string(script) + "}";
    if (name == script && is_known_to_library(item)) {
      CharacterSet set;
      set.native_ = item;
      return set;
    }
  }
  return std::nullopt;
}

CharacterSet CharacterSet::white_space() {
  const CodePoints code_points;
  return from_table("", [&](uint32_t c) { return code_points.is_white_space(c); });
}

CharacterSet CharacterSet::word() {
  const CodePoints code_points;
  return from_table("", [&](uint32_t c) {
    // The six Latin-1 characters are an oddity of the reference's library.
    return code_points.is_alphabetic(c) || code_points.is_mark(c) || code_points.category(c) == Category::kNd ||
           code_points.category(c) == Category::kPc || c == 0xb2 || c == 0xb3 || c == 0xb9 ||
           (c >= 0xbc && c <= 0xbe);
  });
}

CharacterSet CharacterSet::hexadecimal() {
  return from_table("", [](uint32_t c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
}

std::string CharacterSet::as_items() const {
  if (!negated_) {
    if (!native_.empty() && exact_) return native_ + items(missing_);
    return items(ranges_);
  }
  if (!native_.empty() && exact_ && missing_.empty()) return "\\P" + native_.substr(2);
  std::vector<Range> others;
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kNumCodePoints) others.push_back({next, kNumCodePoints - 1});
  return items(others);
}

std::string CharacterSet::as_class() const {
  if (!negated_) return "[" + as_items() + "]";
  CharacterSet positive = *this;
  positive.negated_ = false;
  return "[^" + positive.as_items() + "]";
}

}  // namespace deltatrain::text
