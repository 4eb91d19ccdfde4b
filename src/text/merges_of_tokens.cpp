#include "text/merges_of_tokens.h"

#include <algorithm>

namespace deltatrain::text {

std::vector<Merge> merges_of_tokens(std::vector<TokenToMake> wanted, const TokenTable& parts, bool at_characters) {
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const TokenToMake& a, const TokenToMake& b) { return a.priority > b.priority; });
  std::vector<Merge> merges;
  for (const TokenToMake& token : wanted) {
    const size_t begin = merges.size();
    for (size_t cut = 1; cut < token.text.size(); ++cut) {
      if (at_characters && (static_cast<unsigned char>(token.text[cut]) & 0xc0) == 0x80) continue;
      const int32_t left = parts.find(token.text.substr(0, cut));
      if (left == kNoToken) continue;
      const int32_t right = parts.find(token.text.substr(cut));
      if (right != kNoToken) merges.push_back({left, right, token.id});
    }
    std::sort(merges.begin() + static_cast<ptrdiff_t>(begin), merges.end(), [](const Merge& a, const Merge& b) {
      return a.left != b.left ? a.left < b.left : a.right < b.right;
    });
  }
  return merges;
}

}  // namespace deltatrain::text
