// Files of tokenizers that are refused, or not.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"
#include "text/tokenizer.h"

namespace deltatrain::test {

// What loading a folder says whose only file is tokenizer.model with these bytes: the message of the error, which has to be
// one of bad input, or "accepted".
inline std::string tokenizer_model_refusal(std::string_view bytes) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.model", bytes);
  try {
    text::Tokenizer::load(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

}  // namespace deltatrain::test
