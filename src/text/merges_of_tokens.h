// The list of merges of a vocabulary that comes without one: two tokens are joined wherever their text is a
// token, the earlier token first.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/merge_table.h"

namespace deltatrain::text {

struct TokenToMake {
  std::string_view text;
  int32_t id = 0;
  double priority = 0;  // higher is joined first
};

// `parts` has the texts that may be joined, with their ids; cut are texts between bytes, or `at_characters`.
// Of equal priority, the token that comes first in `wanted`; within a token, the parts with the smaller ids.
std::vector<Merge> merges_of_tokens(std::vector<TokenToMake> wanted, const TokenTable& parts, bool at_characters);

}  // namespace deltatrain::text
