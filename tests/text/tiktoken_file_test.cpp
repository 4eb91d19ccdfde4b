// Whole vocabularies of this form belong to others: tools/check_tokenizers.sh compares Llama 3's with the reference.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"
#include "text/tokenizer.h"

namespace deltatrain::text {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& lines) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.model", lines);
  try {
    Tokenizer::load(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(TiktokenFileTest, NamesTheLineThatIsNone) {
  EXPECT_THAT(refusal("YQ== 0\nYg= 1\n"), HasSubstr("tokenizer.model:2: expected a token in base64 and its rank, got \"Yg= 1\""));
  EXPECT_THAT(refusal("YQ== 0\nYg==\n"), HasSubstr("tokenizer.model:2: "));
  EXPECT_THAT(refusal("YQ== 0\nYg== -1\n"), HasSubstr("tokenizer.model:2: "));
  EXPECT_THAT(refusal("YQ== 0\nYg== 99999999999999999999\n"), HasSubstr("tokenizer.model:2: "));
  EXPECT_THAT(refusal("YQ== 0\n\nYQ== 1\n"), HasSubstr("tokenizer.model:3: expected a token and a rank of its own"));
  EXPECT_THAT(refusal("YQ== 0\nYg== 0\n"), HasSubstr("tokenizer.model:2: expected a token and a rank of its own"));
}

TEST(TiktokenFileTest, NamesAVocabularyWhoseWordsAreNotKnown) {
  EXPECT_THAT(refusal("YQ== 0\nYg== 1\n"),
              HasSubstr("tokenizer.model: vocabulary: expected the 128000 tokens of Llama 3, got 2"));
}

}  // namespace
}  // namespace deltatrain::text
