// Unicode 16.0 properties of code points, one byte each, for splitting text into words.
//
// The table is exactly what the reference tokenizers' regular expressions know; tools/check_tokenizers.sh
// compares it with them on every code point.
#pragma once

#include <cstdint>
#include <string_view>

namespace deltatrain::text {

// General categories in the order of their two-letter names.
enum class Category : uint8_t {
  kCn, kCc, kCf, kCo, kCs, kLl, kLm, kLo, kLt, kLu, kMc, kMe, kMn, kNd, kNl, kNo,
  kPc, kPd, kPe, kPf, kPi, kPo, kPs, kSc, kSk, kSm, kSo, kZl, kZp, kZs,
};
inline constexpr int kNumCategories = 30;
inline constexpr uint32_t kNumCodePoints = 0x110000;

// The two-letter name, such as "Lu".
std::string_view category_name(Category category);

namespace internal {

// Properties of every code point; filled on first use.
const uint8_t* property_table();

// The tables that tools/unicode_tables.py writes.
struct Decomposition {
  uint32_t code_point, first, second;
};
extern const uint32_t kPropertyRanges[];
extern const int kNumPropertyRanges;
extern const uint32_t kPunctuationChanges[];
extern const int kNumPunctuationChanges;
extern const Decomposition kDecompositions[];
extern const int kNumDecompositions;
extern const uint32_t kCombiningClassRanges[];
extern const int kNumCombiningClassRanges;

}  // namespace internal

// A handle on the table: construct once, ask often.
class CodePoints {
 public:
  CodePoints() : table_(internal::property_table()) {}

  Category category(uint32_t c) const { return static_cast<Category>(table_[c] & 31); }
  // \p{L}, \p{M}, \p{N}, \p{P}
  bool is_letter(uint32_t c) const { return in(category(c), Category::kLl, Category::kLu); }
  bool is_mark(uint32_t c) const { return in(category(c), Category::kMc, Category::kMn); }
  bool is_number(uint32_t c) const { return in(category(c), Category::kNd, Category::kNo); }
  bool is_punctuation(uint32_t c) const { return in(category(c), Category::kPc, Category::kPs); }
  bool is_white_space(uint32_t c) const { return (table_[c] & 1 << 5) != 0; }
  bool is_alphabetic(uint32_t c) const { return (table_[c] & 1 << 6) != 0; }
  // Unicode 8.0's \p{P}: the reference's "Punctuation" component is older.
  bool is_punctuation_8(uint32_t c) const;
  // As Unicode 17.0 has it: the reference's "Digits" component is newer than its regular expressions.
  bool is_number_17(uint32_t c) const { return (table_[c] & 1 << 7) != 0; }

 private:
  static bool in(Category category, Category first, Category last) {
    return first <= category && category <= last;
  }
  const uint8_t* table_;
};

}  // namespace deltatrain::text
