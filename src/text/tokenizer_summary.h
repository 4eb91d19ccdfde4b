// What a tokenizer consists of, in words, for people and for --json.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace deltatrain::text {

// Names and values in the order to be shown: vocabulary, merges, stages, named tokens, rule.
std::vector<std::pair<std::string, std::string>> summarize(const Tokenizer& tokenizer);

}  // namespace deltatrain::text
