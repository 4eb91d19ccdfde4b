// Whole vocabularies of this form belong to others: tools/check_tokenizers.sh compares Llama 3's with the reference.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tokenizer_files.h"

namespace deltatrain::text {
namespace {

using test::tokenizer_model_refusal;
using testing::HasSubstr;

TEST(TiktokenFileTest, NamesTheLineThatIsNone) {
  EXPECT_THAT(
      tokenizer_model_refusal("YQ== 0\nYg= 1\n"),
      HasSubstr("tokenizer.model:2: expected a token in base64 and its rank, got \"Yg= 1\""));
  EXPECT_THAT(tokenizer_model_refusal("YQ== 0\nYg==\n"), HasSubstr("tokenizer.model:2: "));
  EXPECT_THAT(tokenizer_model_refusal("YQ== 0\nYg== -1\n"), HasSubstr("tokenizer.model:2: "));
  EXPECT_THAT(tokenizer_model_refusal("YQ== 0\nYg== 99999999999999999999\n"),
              HasSubstr("tokenizer.model:2: "));
  EXPECT_THAT(tokenizer_model_refusal("YQ== 0\n\nYQ== 1\n"),
              HasSubstr("tokenizer.model:3: expected a token and a rank of its own"));
  EXPECT_THAT(tokenizer_model_refusal("YQ== 0\nYg== 0\n"),
              HasSubstr("tokenizer.model:2: expected a token and a rank of its own"));
}

TEST(TiktokenFileTest, NamesAVocabularyWhoseWordsAreNotKnown) {
  EXPECT_THAT(
      tokenizer_model_refusal("YQ== 0\nYg== 1\n"),
      HasSubstr("tokenizer.model: vocabulary: expected the 128000 tokens of Llama 3, got 2"));
}

}  // namespace
}  // namespace deltatrain::text
