#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/test_files.h"
#include "support/tokenizer_files.h"
#include "text/tokenizer.h"

namespace deltatrain::text {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using test::tokenizer_model_refusal;
using testing::HasSubstr;

std::string model_bytes(const std::string& name) {
  return read_file(test::golden_path("text/sentencepiece/" + name + ".model"));
}

class SentencePieceFileTest : public testing::TestWithParam<std::string> {};

// Expected values: PyPI sentencepiece 0.2.3, by tests/golden/text/generate_sentencepiece.py.
TEST_P(SentencePieceFileTest, EncodesAsTheReferenceWithBosInFront) {
  const Tokenizer tokenizer = Tokenizer::load(test::golden_path("text/sentencepiece/" + GetParam() + ".model"));
  const json cases = json::parse(read_file(test::golden_path("text/sentencepiece/" + GetParam() + ".json")));
  ASSERT_GT(cases.size(), 40U);
  for (const json& item : cases) {
    const auto text = item["text"].get<std::string>();
    auto ids = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text, AddSpecialTokens::kNo), ids) << item["text"];
    ids.insert(ids.begin(), 1);
    EXPECT_EQ(tokenizer.encode(text, AddSpecialTokens::kYes), ids) << item["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(All, SentencePieceFileTest, testing::Values("llama", "user_defined", "no_prefix"),
                         [](const auto& param_info) { return param_info.param; });

// What takes no part in the model comes back whole: text with byte fallback and its own spaces.
TEST(SentencePieceFileTest, DecodesWhatItEncodes) {
  const Tokenizer tokenizer = Tokenizer::load(test::golden_path("text/sentencepiece/llama.model"));
  for (const std::string text : {"The river", "  two  spaces ", "a\nb\t\x01", "\xf0\x9f\x98\x80 \xef\xbf\xbd"})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, AddSpecialTokens::kYes), SkipSpecialTokens::kYes), text);
}

TEST(SentencePieceFileTest, FlagsBesideTheFileDecideOnBosAndEos) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.model", model_bytes("llama"));
  write_file_atomically(folder / "tokenizer_config.json", R"({"add_bos_token":false,"add_eos_token":true})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const auto plain = tokenizer.encode("a", AddSpecialTokens::kNo);
  auto want = plain;
  want.push_back(2);
  EXPECT_EQ(tokenizer.encode("a", AddSpecialTokens::kYes), want);
}

// A message of the format may come in parts, of which the last counts: so a field is appended.
TEST(SentencePieceFileTest, NamesWhatIsNotRead) {
  const std::string whole = model_bytes("llama");
  EXPECT_EQ(tokenizer_model_refusal(whole), "accepted");
  EXPECT_THAT(tokenizer_model_refusal(whole + std::string("\x12\x02\x18\x01")),
              HasSubstr("tokenizer.model: trainer_spec.model_type: expected BPE, got unigram"));
  EXPECT_THAT(
      tokenizer_model_refusal(whole + std::string("\x1a\x0a\x0a\x05nmtXX\x12\x01x")),
      HasSubstr(
          "tokenizer.model: normalizer_spec: expected the rules \"identity\", got \"nmtXX\""));
  EXPECT_THAT(tokenizer_model_refusal(whole + std::string("\x12\x03\xc0\x01\x01")),
              HasSubstr("trainer_spec.treat_whitespace_as_suffix: expected false, got true"));
  EXPECT_THAT(tokenizer_model_refusal(whole + std::string("\x0a\x03\x0a\x01\xff")),
              HasSubstr("expected a text in UTF-8"));
  EXPECT_THAT(tokenizer_model_refusal(whole + std::string("\x0a\x05\x0a\x01q\x18\x05")),
              HasSubstr("expected a piece in use"));
  EXPECT_THAT(tokenizer_model_refusal(whole + std::string("\x0a\x07\x0a\x05<unk>")),
              HasSubstr("\"<unk>\" again"));
}

TEST(SentencePieceFileTest, CutAnywhereItIsRefusedOrWhole) {
  const std::string whole = model_bytes("user_defined");
  for (size_t bytes = 1; bytes < whole.size(); bytes += 37)
    EXPECT_THAT(tokenizer_model_refusal(whole.substr(0, bytes)),
                testing::AnyOf("accepted", HasSubstr("tokenizer.model: ")))
        << bytes;
}

}  // namespace
}  // namespace deltatrain::text
