#include "eval/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::eval {
namespace {

using ::testing::HasSubstr;
using text::AddSpecialTokens;
using Ids = std::vector<int32_t>;

// A byte-level tokenizer small enough to encode by hand; <b> in front of every text.
constexpr const char* kTokenizer =
    R"({"version": "1.0", "truncation": null, "padding": null,
"added_tokens": [{"id": 0, "content": "<b>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
  "special": true}],
"normalizer": null,
"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
"post_processor": {"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
  "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
  "special_tokens": {"<b>": {"id": "<b>", "ids": [0], "tokens": ["<b>"]}}},
"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
  "vocab": {"<b>": 0, "A": 1, "n": 2, "s": 3, "w": 4, "e": 5, "r": 6, ":": 7, "\u0120": 8, "C": 9, "An": 10, "Ans": 11,
    "we": 12, "wer": 13, "Answer": 14, "\u0120C": 15, "\u00f0": 16, "\u0141": 17, "\u013a": 18, "\u0122": 19,
    "\u00f0\u0141": 20, "\u013a\u0122": 21, "\u00f0\u0141\u013a\u0122": 22},
  "merges": ["A n", "An s", "w e", "we r", "Ans wer", "\u0120 C", "\u00f0 \u0141", "\u013a \u0122",
    "\u00f0\u0141 \u013a\u0122"]}})";

class TokensTest : public testing::Test {
 protected:
  TokensTest() : tokenizer_(load()) {}

  TokenRequest request(const std::string& context, const std::string& continuation,
                       AddSpecialTokens add = AddSpecialTokens::kYes) const {
    return encode_request(tokenizer_, add, context, continuation, "d.jsonl: row 3");
  }
  std::string refusal(const std::string& context, const std::string& continuation) const {
    try {
      request(context, continuation);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  text::Tokenizer load() const {
    write_file_atomically(folder_ / "tokenizer.json", kTokenizer);
    return text::Tokenizer::load(folder_.path());
  }
  const test::TemporaryFolder folder_;
  const text::Tokenizer tokenizer_;
};

void expect_tokens(const TokenRequest& got, const Ids& context, const Ids& continuation) {
  EXPECT_EQ(got.context, context);
  EXPECT_EQ(got.continuation, continuation);
}

TEST_F(TokensTest, TheWholeIsCutWhereTheContextsTokensEnd) {
  expect_tokens(request("Ans:", " C"), {0, 11, 7}, {15});
  expect_tokens(request("Ans: ", "C"), {0, 11, 7}, {15});  // the blank goes to the continuation
  expect_tokens(request("Ans", "s"), {0, 11}, {3});
  expect_tokens(request(":", "\U0001f600"), {0, 7}, {22});
  expect_tokens(request("Ans\U0001f600", "\U0001f600"), {0, 11, 22}, {22});
  // One token over the border: the context keeps its own tokens, the continuation what is left.
  expect_tokens(request("Ans", "wer: C"), {0, 11}, {7, 15});
}

// As the harness, which ends the run there too; here with the row's place.
TEST_F(TokensTest, AContinuationSwallowedByTheContextsTokenHasNoScore) {
  for (const auto& [context, continuation] :
       {std::pair{"Ans", "wer"}, std::pair{"An", "swer"}, std::pair{"Answ", "er"}}) {
    EXPECT_THAT(refusal(context, continuation),
                HasSubstr("d.jsonl: row 3: continuation \"" + std::string(continuation) + "\""));
  }
  EXPECT_THAT(refusal("Ans", ""), HasSubstr("d.jsonl: row 3: continuation"));
}

TEST_F(TokensTest, TheTokenThatStartsTextsComesOnceOrNotAtAll) {
  expect_tokens(request("<b>Ans:", " C"), {0, 11, 7}, {15});
  expect_tokens(request("Ans:", " C", AddSpecialTokens::kNo), {11, 7}, {15});
  expect_tokens(request("<b>Ans:", " C", AddSpecialTokens::kNo), {0, 11, 7}, {15});
  expect_tokens(request("", "Ans"), {0}, {11});
  expect_tokens(request("", "<b>Ans"), {0}, {11});
}

}  // namespace
}  // namespace deltatrain::eval
