// How fast a tokenizer turns text that is in memory into ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace deltatrain::bench {

struct TokenizerRate {
  int64_t bytes = 0;         // of UTF-8
  int64_t tokens = 0;        // without special tokens around the texts
  double cpu_seconds = 0;    // of all threads together
  double wall_seconds = 0;   // from the first to the last
};

// Encodes every document once on `num_threads` threads, which take them in turn.
TokenizerRate time_tokenizer(const text::Tokenizer& tokenizer, std::span<const std::string> documents,
                             int num_threads);

}  // namespace deltatrain::bench
