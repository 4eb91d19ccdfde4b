#include "text/unicode.h"

#include <algorithm>
#include <vector>

namespace deltatrain::text {

namespace internal {

const uint8_t* property_table() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> values(kNumCodePoints);
    for (int i = 0; i < kNumPropertyRanges; ++i) {
      const uint32_t begin = kPropertyRanges[i] >> 8;
      const uint32_t end = i + 1 < kNumPropertyRanges ? kPropertyRanges[i + 1] >> 8 : kNumCodePoints;
      std::fill(values.begin() + begin, values.begin() + end, static_cast<uint8_t>(kPropertyRanges[i]));
    }
    return values;
  }();
  return table.data();
}

}  // namespace internal

bool CodePoints::is_punctuation_8(uint32_t c) const {
  const uint32_t* const end = internal::kPunctuationChanges + internal::kNumPunctuationChanges;
  return is_punctuation(c) != std::binary_search(internal::kPunctuationChanges, end, c);
}

std::string_view category_name(Category category) {
  static constexpr std::string_view kNames[kNumCategories] = {
      "Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
      "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};
  return kNames[static_cast<int>(category)];
}

}  // namespace deltatrain::text
