// Lower and title case with the full mappings of Unicode, as Python's str has them: one character
// may become several, and a capital sigma at the end of a word takes its final form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deltatrain::text {

// The first character in title case, all others in lower case. `text` is well-formed UTF-8.
std::string capitalize(std::string_view text);

// What Python calls white space (str.isspace), which is wider than Unicode's White_Space by U+001C
// to U+001F.
bool is_python_space(uint32_t code_point);

// Without such white space at both ends, at the front, at the end.
std::string_view strip(std::string_view text);
std::string_view strip_front(std::string_view text);
std::string_view strip_back(std::string_view text);

// Number of code points of well-formed UTF-8.
int64_t num_code_points(std::string_view text);

namespace internal {

struct CaseRange {  // first, first + step, ..., last: add the difference
  uint32_t first, last;
  uint32_t step;
  int32_t difference;
};
struct CaseExpansion {  // to two or three code points; unused ones are 0
  uint32_t from, to[3];
};
struct CaseBorders {
  uint32_t begin, end;
};
extern const CaseRange kLowerRanges[];
extern const int kNumLowerRanges;
extern const CaseExpansion kLowerExpansions[];
extern const int kNumLowerExpansions;
extern const CaseRange kTitleRanges[];
extern const int kNumTitleRanges;
extern const CaseExpansion kTitleExpansions[];
extern const int kNumTitleExpansions;
// Cased letters, and what is passed over when one is looked for around a sigma; disjoint.
extern const CaseBorders kCased[];
extern const int kNumCased;
extern const CaseBorders kCaseIgnorable[];
extern const int kNumCaseIgnorable;

}  // namespace internal

}  // namespace deltatrain::text
