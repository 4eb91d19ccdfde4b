#include "text/case_mapping.h"

#include <algorithm>
#include <vector>

#include "text/utf8.h"

namespace deltatrain::text {

namespace {

using internal::CaseBorders;
using internal::CaseExpansion;
using internal::CaseRange;

constexpr uint32_t kCapitalSigma = 0x3a3;
constexpr uint32_t kFinalSigma = 0x3c2;

struct Mapping {
  const CaseRange* ranges;
  int num_ranges;
  const CaseExpansion* expansions;
  int num_expansions;

  void append(uint32_t c, std::string& out) const {
    const CaseExpansion* expansion =
        std::lower_bound(expansions, expansions + num_expansions, c,
                         [](const CaseExpansion& e, uint32_t value) { return e.from < value; });
    if (expansion != expansions + num_expansions && expansion->from == c) {
      for (const uint32_t to : expansion->to) {
        if (to != 0) append_utf8(to, out);
      }
      return;
    }
    const CaseRange* next =
        std::upper_bound(ranges, ranges + num_ranges, c,
                         [](uint32_t value, const CaseRange& r) { return value < r.first; });
    if (next != ranges) {
      const CaseRange& range = *(next - 1);
      if (c <= range.last && (c - range.first) % range.step == 0)
        c += static_cast<uint32_t>(range.difference);
    }
    append_utf8(c, out);
  }
};

bool contains(const CaseBorders* borders, int count, uint32_t c) {
  const CaseBorders* next =
      std::upper_bound(borders, borders + count, c,
                       [](uint32_t value, const CaseBorders& b) { return value < b.begin; });
  return next != borders && c < (next - 1)->end;
}

bool is_cased(uint32_t c) { return contains(internal::kCased, internal::kNumCased, c); }
bool is_ignorable(uint32_t c) {
  return contains(internal::kCaseIgnorable, internal::kNumCaseIgnorable, c);
}

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> result;
  const char* p = text.data();
  while (p < text.data() + text.size()) result.push_back(next_code_point(p));
  return result;
}

// Whether the sigma at `i` ends a word: a cased letter before it and none after, ignorable ones
// passed over.
bool is_final_sigma(const std::vector<uint32_t>& text, size_t i) {
  size_t before = i;
  while (before > 0 && is_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = i + 1;
  while (after < text.size() && is_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

}  // namespace

std::string capitalize(std::string_view text) {
  static const Mapping lower = {internal::kLowerRanges, internal::kNumLowerRanges,
                                internal::kLowerExpansions, internal::kNumLowerExpansions};
  static const Mapping title = {internal::kTitleRanges, internal::kNumTitleRanges,
                                internal::kTitleExpansions, internal::kNumTitleExpansions};
  const std::vector<uint32_t> points = code_points(text);
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      title.append(points[i], result);
    } else if (points[i] == kCapitalSigma && is_final_sigma(points, i)) {
      append_utf8(kFinalSigma, result);
    } else {
      lower.append(points[i], result);
    }
  }
  return result;
}

bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

std::string_view strip_front(std::string_view text) {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    const char* next = p;
    if (!is_python_space(next_code_point(next))) break;
    p = next;
  }
  return {p, static_cast<size_t>(end - p)};
}

std::string_view strip_back(std::string_view text) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
    const char* p = text.data() + start;
    if (!is_python_space(next_code_point(p))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

std::string_view strip(std::string_view text) { return strip_front(strip_back(text)); }

int64_t num_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace deltatrain::text
