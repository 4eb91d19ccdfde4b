#include "base/error.h"

#include <algorithm>
#include <vector>

namespace deltatrain {

std::string error_text(std::string_view where, std::string_view what, std::string_view expected,
                       std::string_view got) {
  std::string text;
  const auto add = [&text](std::string_view separator, std::string_view lead,
                           std::string_view part) {
    if (part.empty()) return;
    if (!text.empty()) text += separator;
    text += lead;
    text += part;
  };
  add(": ", "", where);
  add(": ", "", what);
  add(": ", "expected ", expected);
  add(expected.empty() ? ": " : ", ", "got ", got);
  return text;
}

int edit_distance(std::string_view a, std::string_view b) {
  const size_t rows = a.size() + 1;
  const size_t columns = b.size() + 1;
  std::vector<int> table(rows * columns);
  for (size_t i = 0; i < rows; ++i) table[i * columns] = static_cast<int>(i);
  for (size_t j = 0; j < columns; ++j) table[j] = static_cast<int>(j);
  for (size_t i = 1; i < rows; ++i) {
    for (size_t j = 1; j < columns; ++j) {
      const int substitution = table[(i - 1) * columns + j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      int best = std::min(
          {table[(i - 1) * columns + j] + 1, table[i * columns + j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, table[(i - 2) * columns + j - 2] + 1);
      }
      table[i * columns + j] = best;
    }
  }
  return table.back();
}

}  // namespace deltatrain
