#include "text/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"
#include "text/tokenizer.h"

namespace deltatrain::text {
namespace {

using nlohmann::json;
using test::TemporaryFolder;

BpeTrainer trainer_on_golden_text(WordPattern pattern, int64_t vocab_size) {
  BpeTrainerOptions options;
  options.vocab_size = vocab_size;
  options.pattern = pattern;
  options.special_tokens = {"<|bos|>", "<|eos|>"};
  BpeTrainer trainer(options);
  std::istringstream lines(read_file(test::golden_path("text/training.txt")));
  for (std::string line; std::getline(lines, line);) trainer.feed(line);
  return trainer;
}

// Expected: BpeTrainer of PyPI tokenizers 0.23.3 on the same lines (tests/golden/text/generate.py).
TEST(BpeTrainerTest, LearnsTheMergesOfTheReference) {
  const std::pair<WordPattern, const char*> cases[] = {{WordPattern::kLlama3, "llama3"},
                                                       {WordPattern::kGpt2, "gpt2_added"},
                                                       {WordPattern::kQwen2, "qwen2"}};
  for (const auto& [pattern, name] : cases) {
    const json model = json::parse(read_file(test::golden_path(std::string("text/") + name + ".json")))["tokenizer"]["model"];
    const TrainedVocabulary vocabulary = trainer_on_golden_text(pattern, 420).train(silent_reporter());
    ASSERT_EQ(vocabulary.tokens.size(), 420U);
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      EXPECT_EQ(model["vocab"][vocabulary.tokens[id]], id) << name;
    }
    ASSERT_EQ(vocabulary.merges.size(), model["merges"].size()) << name;
    for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      const auto& [left, right] = vocabulary.merges[rank];
      EXPECT_EQ(vocabulary.tokens[left], model["merges"][rank][0]) << name << " " << rank;
      EXPECT_EQ(vocabulary.tokens[right], model["merges"][rank][1]) << name << " " << rank;
    }
  }
}

TEST(BpeTrainerTest, WrittenTokenizerLoadsAndRoundTrips) {
  const TemporaryFolder folder;
  WrittenTokenizer written;
  written.vocabulary = trainer_on_golden_text(WordPattern::kLlama3, 500).train(silent_reporter());
  written.num_special_tokens = 2;
  written.bos = "<|bos|>";
  written.eos = "<|eos|>";
  write_tokenizer(folder.path(), written);
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 500);
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  const std::string text = read_file(test::golden_path("text/training.txt"));
  const std::vector<int32_t> ids = tokenizer.encode(text, AddSpecialTokens::kYes);
  EXPECT_EQ(ids[0], 0);
  EXPECT_LT(ids.size(), text.size() * 2 / 3);
  EXPECT_EQ(tokenizer.decode(ids, SkipSpecialTokens::kYes), text);

  written.bos_in_front = false;
  write_tokenizer(folder.path(), written);
  EXPECT_EQ(Tokenizer::load(folder.path()).special_tokens_rule(), "nothing in front, nothing behind");
}

TEST(BpeTrainerTest, StopsWhenThereAreNoMorePairs) {
  BpeTrainerOptions options;
  options.vocab_size = 1000;
  BpeTrainer trainer(options);
  trainer.feed("abab abab");
  const TrainedVocabulary vocabulary = trainer.train(silent_reporter());
  EXPECT_EQ(vocabulary.tokens.back(), "\u0120abab");
  EXPECT_EQ(vocabulary.tokens.size(), 256U + vocabulary.merges.size());
  options.min_frequency = 3;
  BpeTrainer strict(options);
  strict.feed("abab abab");
  EXPECT_THAT(strict.train(silent_reporter()).tokens.back(), "ab");
}

TEST(BpeTrainerTest, LeavesOutWordsOfExcessiveLength) {
  BpeTrainerOptions options;
  options.vocab_size = 300;
  BpeTrainer trainer(options);
  trainer.feed(std::string(BpeTrainer::kMaxWordBytes + 1, 'x'));
  EXPECT_EQ(trainer.num_long_words(), 1);
  EXPECT_EQ(trainer.num_words(), 0);
  EXPECT_TRUE(trainer.train(silent_reporter()).merges.empty());
}

TEST(BpeTrainerTest, RefusesAVocabularyWithoutRoomForTheBytes) {
  BpeTrainerOptions options;
  options.vocab_size = 257;
  options.special_tokens = {"<a>", "<b>"};
  try {
    const BpeTrainer trainer(options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "vocabulary size: expected at least 258 (256 bytes and 2 special tokens), got 257");
  }
}

}  // namespace
}  // namespace deltatrain::text
