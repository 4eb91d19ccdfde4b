// How prepare turns one document's text into ids:
// a tokenizer with the choices of the run, or a test's own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::prepare {

struct TextEncoder {
  // Appends the ids of one document's text, with what the tokenizer puts around a text. Called from
  // several threads at once.
  std::function<void(std::string_view text, std::vector<int32_t>& ids)> encode;
  int64_t vocab_size = 0;   // every id lies below it
  int32_t eod_id = -1;      // appended to each document; -1: none
  std::string identity;     // digest: equal only for encoders that give equal ids
  std::string description;  // for the manifest
};

}  // namespace deltatrain::prepare
