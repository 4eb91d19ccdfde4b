#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"
#include "text/tokenizer_summary.h"
#include "text/utf8.h"

namespace deltatrain::text {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden_path("text"))) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

json golden(const std::string& name) { return json::parse(read_file(test::golden_path("text/" + name + ".json"))); }

Tokenizer load(const json& tokenizer) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.json", tokenizer.dump());
  return Tokenizer::load(folder.path());
}

Tokenizer load_golden(const std::string& name) { return load(golden(name)["tokenizer"]); }

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, SkipSpecialTokens skip) {
  StreamDecoder decoder(tokenizer, skip);
  std::string all;
  const auto add = [&](const std::string& piece) {
    EXPECT_EQ(find_ill_formed_utf8(piece), std::string::npos) << piece;
    all += piece;
  };
  for (const int32_t id : ids) add(decoder.append(id));
  add(decoder.finish());
  return all;
}

class GoldenTokenizerTest : public testing::TestWithParam<std::string> {};

// Expected values: PyPI tokenizers 0.23.3, by tests/golden/text/generate.py.
TEST_P(GoldenTokenizerTest, EncodesAndDecodesAsTheReference) {
  const json data = golden(GetParam());
  const Tokenizer tokenizer = load(data["tokenizer"]);
  ASSERT_GT(data["cases"].size(), 40U);
  for (const json& item : data["cases"]) {
    const auto text = item["text"].get<std::string>();
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text, AddSpecialTokens::kYes), ids) << item["text"];
    EXPECT_EQ(tokenizer.encode(text, AddSpecialTokens::kNo), item["ids_plain"].get<std::vector<int32_t>>())
        << item["text"];
    if (!item.contains("decoded")) continue;
    EXPECT_EQ(tokenizer.decode(ids, SkipSpecialTokens::kNo), item["decoded"]) << item["text"];
    EXPECT_EQ(tokenizer.decode(ids, SkipSpecialTokens::kYes), item["decoded_skip"]) << item["text"];
    EXPECT_EQ(streamed(tokenizer, ids, SkipSpecialTokens::kNo), item["decoded"]) << item["text"];
    EXPECT_EQ(streamed(tokenizer, ids, SkipSpecialTokens::kYes), item["decoded_skip"]) << item["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizerTest, testing::ValuesIn(golden_names()),
                         [](const auto& param_info) { return param_info.param; });

TEST(TokenizerTest, AppendsToWhatIsThere) {
  const Tokenizer tokenizer = load_golden("llama3");
  std::vector<int32_t> ids = {7};
  tokenizer.encode("a", AddSpecialTokens::kYes, ids);
  EXPECT_THAT(ids, ElementsAre(7, *tokenizer.bos_id(), *tokenizer.id_of("a")));
}

TEST(TokenizerTest, KnowsItsTokens) {
  const Tokenizer tokenizer = load_golden("llama3");
  EXPECT_EQ(tokenizer.vocab_size(), 420);
  EXPECT_EQ(tokenizer.num_tokens(), 420);
  EXPECT_EQ(tokenizer.id_of("<|bos|>"), 0);
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_text(9999), "");
  EXPECT_EQ(tokenizer.token_bytes(*tokenizer.id_of("\u0120")), " ");
  EXPECT_THAT(tokenizer.special_ids(), ElementsAre(0, 1));
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_FALSE(tokenizer.is_special(2));
  EXPECT_EQ(tokenizer.special_tokens_rule(), "<|bos|> (0) in front, nothing behind");
}

TEST(TokenizerTest, ReadsIllFormedBytesAsReplacementCharacters) {
  const Tokenizer tokenizer = load_golden("gpt2_added");
  EXPECT_EQ(tokenizer.encode("a\xc3(b\xf0\x9f", AddSpecialTokens::kNo),
            tokenizer.encode("a\xef\xbf\xbd(b\xef\xbf\xbd", AddSpecialTokens::kNo));
}

TEST(TokenizerTest, DecodesUnknownIdsAsNothing) {
  const Tokenizer tokenizer = load_golden("llama3");
  const std::vector<int32_t> ids = {-1, 420, 1 << 30};
  EXPECT_EQ(tokenizer.decode(ids, SkipSpecialTokens::kNo), "");
}

TEST(TokenizerTest, StreamHoldsUnfinishedCharactersBack) {
  const Tokenizer tokenizer = load_golden("gpt2_added");
  StreamDecoder decoder(tokenizer, SkipSpecialTokens::kNo);
  const auto byte = [&](const char* printable) { return *tokenizer.id_of(printable); };
  EXPECT_EQ(decoder.append(byte("\u00f0")), "");  // F0 9F 98 80
  EXPECT_EQ(decoder.append(byte("\u0141")), "");
  EXPECT_EQ(decoder.append(byte("\u013a")), "");
  EXPECT_EQ(decoder.append(byte("\u0122")), "\xf0\x9f\x98\x80");
  EXPECT_EQ(decoder.append(byte("\u00e2")), "");
  EXPECT_EQ(decoder.append(byte("a")), "\xef\xbf\xbd" "a");
  EXPECT_EQ(decoder.append(byte("\u00c3")), "");
  EXPECT_EQ(decoder.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(decoder.append(byte("b")), "b");
}

// Hostile lengths: one word or run of a million characters. Round trip, and ids as for a part of it that
// the quadratic form still does.
TEST(TokenizerTest, LongRunsTakeLinearTimeAndRoundTrip) {
  for (const std::string name : {"llama3", "gpt2_added", "cased", "byte_fallback"}) {
    const Tokenizer tokenizer = load_golden(name);
    std::string letters;
    uint64_t state = 1;
    for (int i = 0; i < 1000000; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      letters += static_cast<char>('a' + (state >> 33) % 26);
    }
    for (const std::string& text : {std::string(1000000, 'a'), std::string(1000000, ' '), std::string(1000000, '^'),
                                    std::string(1000000, '\n') + "x", letters}) {
      const std::vector<int32_t> ids = tokenizer.encode(text, AddSpecialTokens::kNo);
      EXPECT_EQ(tokenizer.decode(ids, SkipSpecialTokens::kNo), text) << name << text.substr(0, 5);
    }
  }
}

TEST(TokenizerTest, ThreadsGetTheSameIds) {
  const Tokenizer tokenizer = load_golden("llama3");
  std::string text;
  const json cases = golden("llama3");
  for (const json& item : cases["cases"]) text += item["text"].get<std::string>() + "\n";
  const std::vector<int32_t> expected = tokenizer.encode(text, AddSpecialTokens::kYes);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) wrong += tokenizer.encode(text, AddSpecialTokens::kYes) != expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TokenizerTest, NamesBosAndEosFromTheConfiguration) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.json", golden("gpt2_added")["tokenizer"].dump());
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"bos_token":{"content":"<|bos|>"},"eos_token":"<|eos|>","pad_token":null})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer.special_tokens_rule(), "nothing in front, nothing behind");

  write_file_atomically(folder / "tokenizer_config.json", R"({"bos_token":"<|missing|>"})");
  try {
    Tokenizer::load(folder.path());
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer_config.json: bos_token: expected a token of the tokenizer"));
  }
}

// transformers 5.24.0 gives the same ids with and without these flags: a flag that would have no effect is refused.
TEST(TokenizerTest, FlagsThatContradictThePostProcessorAreRefused) {
  const TemporaryFolder folder;
  const auto outcome = [&](const json& tokenizer, const json& flags) -> std::string {
    json configuration = {{"bos_token", "<|bos|>"}, {"eos_token", "<|eos|>"}};
    configuration.update(flags);
    write_file_atomically(folder / "tokenizer.json", tokenizer.dump());
    write_file_atomically(folder / "tokenizer_config.json", configuration.dump());
    try {
      const auto ids = Tokenizer::load(folder.path()).encode("Hello", AddSpecialTokens::kYes);
      return ids[0] == 0 ? "with BOS" : "without BOS";
    } catch (const FormatError& error) {
      return error.what();
    }
  };
  const json with = golden("llama3")["tokenizer"];
  json without = with;
  without["post_processor"] = nullptr;
  EXPECT_EQ(outcome(with, json::object()), "with BOS");
  EXPECT_EQ(outcome(with, {{"add_bos_token", true}, {"add_eos_token", false}}), "with BOS");
  EXPECT_EQ(outcome(without, json::object()), "without BOS");
  EXPECT_EQ(outcome(without, {{"add_bos_token", false}, {"add_eos_token", nullptr}}), "without BOS");
  EXPECT_THAT(outcome(with, {{"add_bos_token", false}}),
              HasSubstr("tokenizer_config.json: add_bos_token: expected true, since BOS in front is put there by"));
  EXPECT_THAT(outcome(without, {{"add_bos_token", true}}),
              HasSubstr("tokenizer_config.json: add_bos_token: expected false, since no BOS in front is put there by"));
  EXPECT_THAT(outcome(with, {{"add_eos_token", true}}), HasSubstr("add_eos_token: expected false"));
}

struct BadCase {
  const char* name;
  void (*edit)(json&);
  const char* message;
};

class BadTokenizerTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadTokenizerTest, IsRefusedByName) {
  json data = golden("llama3")["tokenizer"];
  GetParam().edit(data);
  try {
    load(data);
    FAIL() << "was loaded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("tokenizer.json: "), HasSubstr(GetParam().message)));
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
  }
}

const BadCase kBadCases[] = {
    {"UnknownModel", [](json& d) { d["model"]["type"] = "Unigram"; },
     "model: expected the model \"BPE\", got the model \"Unigram\""},
    {"NoModel", [](json& d) { d.erase("model"); }, "a key \"model\""},
    {"UnknownNormalizer", [](json& d) { d["normalizer"] = {{"type", "Nmt"}}; },
     "normalizer: expected Prepend, Replace, Strip, NFC, NFD or ByteLevel, got the normalizer \"Nmt\""},
    {"UnknownPreTokenizer", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["type"] = "UnicodeScripts"; },
     "CharDelimiterSplit, got the pre-tokenizer \"UnicodeScripts\""},
    {"UnknownDecoder", [](json& d) { d["decoder"]["type"] = "CTC"; },
     "Metaspace or BPEDecoder, got the decoder \"CTC\""},
    {"UnknownPostProcessor", [](json& d) { d["post_processor"]["processors"][0]["type"] = "Other"; },
     "got the post-processor \"Other\""},
    {"UnknownBehavior", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Kept"; },
     "MergedWithNext or Contiguous, got \"Kept\""},
    {"BadExpression", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
     "pre_tokenizer.pretokenizers[0].pattern.Regex: regular expression \"(a\""},
    {"BackReference", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a)\\1"; },
     "pre_tokenizer.pretokenizers[0].pattern.Regex: regular expression \"(a)\\1\": offset 3: expected what "
     "docs/formats/tokenizer.md says is understood, got a back reference"},
    {"UnknownProperty", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{Emoji}"; },
     "got the property Emoji"},
    {"ClassInClass",
     [](json& d) {
       d["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "[a[b]]"}}}, {"content", "x"}};
     },
     "normalizer.pattern.Regex: regular expression \"[a[b]]\": offset 2: expected what docs/formats/tokenizer.md says "
     "is understood, got a class in a class"},
    {"MergeOfUnknownToken", [](json& d) { d["model"]["merges"][3] = {"zz", "qq"}; },
     "model.merges[3]: expected tokens of model.vocab (\"zz\" is none)"},
    {"MergeOfThree", [](json& d) { d["model"]["merges"][3] = "a b c"; },
     "model.merges[3]: expected two tokens with one blank between them, got \"a b c\""},
    {"NegativeId", [](json& d) { d["model"]["vocab"]["a"] = -4; },
     "model.vocab[\"a\"]: expected an integer from 0 to 16777215, got -4"},
    {"IdTwice", [](json& d) { d["model"]["vocab"]["a"] = 100; }, "expected an id that no other token has, got 100"},
    {"AddedIdElsewhere", [](json& d) { d["added_tokens"][0]["id"] = 77; },
     "added_tokens[0].id: expected 0, as in model.vocab, got 77"},
    {"Dropout", [](json& d) { d["model"]["dropout"] = 0.1; }, "model: expected no dropout, got 0.1"},
    {"Version", [](json& d) { d["version"] = "2.0"; }, "version: expected \"1.0\", got \"2.0\""},
    {"VocabularyIsAList", [](json& d) { d["model"]["vocab"] = json::array(); },
     "model.vocab: expected an object from token to id, got []"},
    {"DeepNesting",
     [](json& d) {
       json inner = d["pre_tokenizer"];
       for (int i = 0; i < 40; ++i) inner = {{"type", "Sequence"}, {"pretokenizers", {inner}}};
       d["pre_tokenizer"] = inner;
     },
     "pre_tokenizer.pretokenizers[0]"},
};

INSTANTIATE_TEST_SUITE_P(All, BadTokenizerTest, testing::ValuesIn(kBadCases),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(TokenizerTest, RefusesWhatIsNotJsonOrNotThere) {
  const TemporaryFolder folder;
  EXPECT_THROW(Tokenizer::load(folder.path()), FileError);
  EXPECT_THROW(Tokenizer::load(folder / "missing.json"), FileError);
  write_file_atomically(folder / "tokenizer.json", "{\"model\": ");
  try {
    Tokenizer::load(folder.path());
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: byte 11: expected valid JSON, got the end"));
  }
}

// A file cut at any place, or with a byte changed, is refused or loaded; it never crashes.
TEST(TokenizerTest, SurvivesDamagedFiles) {
  const std::string whole = golden("metaspace")["tokenizer"].dump();
  const TemporaryFolder folder;
  uint64_t state = 7;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const size_t at = (state >> 20) % whole.size();
    if (i % 3 == 0) {
      damaged.resize(at);
    } else {
      damaged[at] = static_cast<char>(state >> 50);
    }
    write_file_atomically(folder / "tokenizer.json", damaged);
    try {
      const Tokenizer tokenizer = Tokenizer::load(folder.path());
      tokenizer.encode("The river, the m\u00fcller 12", AddSpecialTokens::kYes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    }
  }
}

TEST(TokenizerTest, SummaryNamesTheStages) {
  const auto summary = summarize(load_golden("llama3"));
  const std::pair<std::string, std::string> expected = {"pre_tokenizer", "Split at the words of Llama 3; ByteLevel"};
  EXPECT_THAT(summary, testing::Contains(expected));
}

}  // namespace
}  // namespace deltatrain::text
