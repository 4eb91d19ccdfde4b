#include "serve/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "serve/small_server.h"
#include "text/utf8.h"

namespace deltatrain::serve {
namespace {

using ::testing::ElementsAre;

struct Streamed {
  std::vector<std::string> pieces;  // of the tokens, and of the end
  std::string text;
  bool is_stopped = false;
};

Streamed stream(const text::Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                const std::vector<int32_t>& ids, std::vector<std::string> stops = {}) {
  TextStream text(tokenizer, prompt, std::move(stops));
  Streamed result;
  for (const int32_t id : ids) result.pieces.push_back(text.append(id, false));
  result.pieces.push_back(text.finish());
  for (const std::string& piece : result.pieces) {
    EXPECT_EQ(text::find_ill_formed_utf8(piece), std::string::npos) << piece;
    result.text += piece;
  }
  result.is_stopped = text.is_stopped();
  return result;
}

std::vector<int32_t> encode(const text::Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, text::AddSpecialTokens::kNo);
}

// The tokens of single bytes.
std::vector<int32_t> bytes(const text::Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.token_bytes(id) == std::string(1, c)) {
        ids.push_back(id);
        break;
      }
    }
  }
  EXPECT_EQ(ids.size(), text.size());
  return ids;
}

TEST(TextStreamTest, CharactersComeWhole) {
  const auto tokenizer = test::golden_tokenizer("llama3");
  const std::vector<int32_t> ids = bytes(tokenizer, "\xf0\x9f\x98\x80\x80 a");
  EXPECT_THAT(stream(tokenizer, {5}, ids).pieces,
              ElementsAre("", "", "", "\xf0\x9f\x98\x80", "\xef\xbf\xbd", " ", "a", ""));
  // Broken off, it is no character.
  EXPECT_THAT(stream(tokenizer, {5}, {ids.begin(), ids.begin() + 3}).pieces,
              ElementsAre("", "", "", "\xef\xbf\xbd"));
  EXPECT_EQ(stream(tokenizer, {5}, bytes(tokenizer, "\xf0\x9f\x61")).text, "\xef\xbf\xbd\x61");
}

TEST(TextStreamTest, ACharacterMayBeginInThePrompt) {
  const auto tokenizer = test::golden_tokenizer("llama3");
  const std::vector<int32_t> ids = bytes(tokenizer, "x\xc3\xa9y");
  const std::vector<int32_t> prompt(ids.begin(), ids.begin() + 2);
  EXPECT_EQ(prompt_text(tokenizer, prompt).text, "x");
  EXPECT_THAT(stream(tokenizer, prompt, {ids[2], ids[3]}).pieces, ElementsAre("\xc3\xa9", "y", ""));
  // Left alone, its rest belongs to the prompt.
  TextStream alone(tokenizer, prompt, {});
  EXPECT_EQ(alone.finish(), "");
  EXPECT_EQ(alone.rest_of_prompt(), "\xef\xbf\xbd");
}

// Decoders that take a blank off the front of a text, and those that say nothing before its end.
TEST(TextStreamTest, TokensAreDecodedBehindThePrompt) {
  for (const char* name : {"llama3", "byte_fallback", "metaspace", "gpt2_prefix", "end_of_word"}) {
    const auto tokenizer = test::golden_tokenizer(name);
    const std::vector<int32_t> ids = encode(tokenizer, "the cat and the dog");
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      const std::vector<int32_t> prompt(ids.begin(),
                                        ids.begin() + static_cast<std::ptrdiff_t>(cut));
      const std::vector<int32_t> rest(ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end());
      const std::string whole = tokenizer.decode(ids, text::SkipSpecialTokens::kNo);
      const std::string before = tokenizer.decode(prompt, text::SkipSpecialTokens::kNo);
      if (!whole.starts_with(before)) continue;
      EXPECT_EQ(stream(tokenizer, prompt, rest).text, whole.substr(before.size()))
          << name << " cut after " << cut;
    }
  }
}

TEST(TextStreamTest, EndsWhereTheFirstStopStringBegins) {
  const auto tokenizer = test::golden_tokenizer("llama3");
  const std::vector<int32_t> ids = bytes(tokenizer, "one\n\ntwo\n\nthree");
  EXPECT_EQ(stream(tokenizer, {5}, ids, {"\n\n"}).text, "one");
  EXPECT_EQ(stream(tokenizer, {5}, ids, {"three", "wo"}).text, "one\n\nt");
  EXPECT_TRUE(stream(tokenizer, {5}, ids, {"three", "wo"}).is_stopped);
  EXPECT_EQ(stream(tokenizer, {5}, ids, {"o"}).text, "");
  const Streamed none = stream(tokenizer, {5}, ids, {"four", "\n\nx", "eee"});
  EXPECT_EQ(none.text, "one\n\ntwo\n\nthree");
  EXPECT_FALSE(none.is_stopped);
  // What may begin one is held back, and no longer than that.
  EXPECT_THAT(stream(tokenizer, {5}, bytes(tokenizer, "ab\n\n-"), {"\n\n\n"}).pieces,
              ElementsAre("a", "b", "", "", "\n\n-", ""));
  // Neither halves of characters.
  EXPECT_THAT(stream(tokenizer, {5}, bytes(tokenizer, "\xc3\xa9!"), {"\xc3\xa9?"}).pieces,
              ElementsAre("", "", "\xc3\xa9!", ""));
}

TEST(TextStreamTest, SpecialAndSilentTokensHaveNoText) {
  const auto tokenizer = test::golden_tokenizer("llama3");
  TextStream text(tokenizer, std::vector<int32_t>{0, 40}, {});
  EXPECT_EQ(text.append(0, false), "");
  EXPECT_EQ(text.append(bytes(tokenizer, "a")[0], true), "");
  EXPECT_EQ(text.append(bytes(tokenizer, "b")[0], false), "b");
  EXPECT_EQ(text.num_characters(), 1);
}

TEST(PromptTextTest, OffsetsCountCharacters) {
  const auto tokenizer = test::golden_tokenizer("llama3");
  std::vector<int32_t> ids = {0};
  for (const int32_t id : bytes(tokenizer, "a\xc3\xa9z")) ids.push_back(id);
  const PromptText prompt = prompt_text(tokenizer, ids);
  EXPECT_EQ(prompt.text, "<|bos|>a\xc3\xa9z");
  EXPECT_THAT(prompt.offsets, ElementsAre(0, 7, 8, 8, 9));
}

}  // namespace
}  // namespace deltatrain::serve
