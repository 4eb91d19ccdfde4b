#include "text/bpe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text/byte_level.h"
#include "text/word_cache.h"
#include "text/word_encoder.h"

namespace deltatrain::text {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  size_t below(size_t n) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<size_t>(state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

// The definition, word for word: while there is a pair with a merge, join the leftmost of lowest rank.
std::vector<int32_t> by_definition(std::vector<int32_t> symbols, const std::vector<Merge>& merges) {
  while (true) {
    for (size_t rank = 0;; ++rank) {
      if (rank == merges.size()) return symbols;
      size_t at = 0;
      while (at + 1 < symbols.size() &&
             (symbols[at] != merges[rank].left || symbols[at + 1] != merges[rank].right)) {
        ++at;
      }
      if (at + 1 >= symbols.size()) continue;
      symbols[at] = merges[rank].result;
      symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
      break;
    }
  }
}

struct RandomVocabulary {
  TokenTable tokens;
  std::vector<Merge> merges;

  // The 256 bytes, and `count` merges of random tokens. Unlike in trained vocabularies the merges come in any
  // order, some tokens are made in several ways, and some are never reached.
  RandomVocabulary(Random& random, size_t count, bool in_order) {
    for (int b = 0; b < 256; ++b) tokens.insert(bytes_to_printable(std::string(1, static_cast<char>(b))), b);
    const std::string letters = "abc";
    std::vector<int32_t> pool;
    for (const char c : letters) pool.push_back(c);
    std::map<std::pair<int32_t, int32_t>, bool> seen;
    while (merges.size() < count) {
      const int32_t left = pool[random.below(pool.size())], right = pool[random.below(pool.size())];
      if (tokens[left].size() + tokens[right].size() > 9 || seen[{left, right}]) {
        if (random.below(50) == 0) count = merges.size();
        continue;
      }
      seen[{left, right}] = true;
      const std::string joined = std::string(tokens[left]) + std::string(tokens[right]);
      int32_t result = tokens.find(joined);
      if (result == kNoToken) {
        result = static_cast<int32_t>(tokens.size());
        tokens.insert(joined, result);
        pool.push_back(result);
      }
      merges.push_back({left, right, result});
    }
    if (in_order) return;
    for (size_t i = merges.size(); i > 1; --i) std::swap(merges[i - 1], merges[random.below(i)]);
  }
};

TEST(BpeTest, AllFormsEqualTheDefinitionOnRandomVocabularies) {
  Random random(1);
  for (int round = 0; round < 400; ++round) {
    const RandomVocabulary vocabulary(random, 1 + random.below(60), round % 2 == 0);
    const Bpe bpe(vocabulary.tokens, vocabulary.merges, {});
    ASSERT_TRUE(bpe.has_byte_symbols());
    PairVerdicts verdicts;
    for (int k = 0; k < 40; ++k) {
      // Lengths around the border between the quadratic form and the one with a queue.
      std::string word;
      const size_t length = 1 + random.below(k % 4 == 0 ? 90 : 12);
      for (size_t i = 0; i < length; ++i) word += "abcd"[random.below(k % 8 == 7 ? 4 : 2)];
      std::vector<int32_t> symbols(word.begin(), word.end());
      const std::vector<int32_t> expected = by_definition(symbols, vocabulary.merges);

      std::vector<int32_t> bytes(word.size());
      bytes.resize(bpe.encode_bytes(word, verdicts, bytes.data()));
      ASSERT_EQ(bytes, expected) << word << " round " << round;

      std::vector<int32_t> characters;
      BpeScratch scratch;
      bpe.encode_characters(word, scratch, characters);
      ASSERT_EQ(characters, expected) << word << " round " << round;
    }
  }
}

TEST(BpeTest, QueueEqualsMatcherOnLongWords) {
  Random random(2);
  for (int round = 0; round < 20; ++round) {
    // With many merges a token is the first of hundreds of pairs.
    const RandomVocabulary vocabulary(random, round < 15 ? 50 : 4000, round % 2 == 0);
    const Bpe bpe(vocabulary.tokens, vocabulary.merges, {});
    std::string word;
    for (int i = 0; i < 20000; ++i) word += "abc"[random.below(round % 3 + 1)];
    std::vector<int32_t> bytes(word.size());
    BpeScratch scratch;
    bytes.resize(bpe.encode_bytes(word, scratch.verdicts, bytes.data()));
    std::vector<int32_t> characters;
    bpe.encode_characters(word, scratch, characters);
    ASSERT_EQ(characters, bytes) << round;
  }
}

TEST(BpeTest, WholeWordsComeFirstWithIgnoreMerges) {
  TokenTable tokens;
  for (int b = 0; b < 256; ++b) tokens.insert(bytes_to_printable(std::string(1, static_cast<char>(b))), b);
  tokens.insert("ab", 256);
  tokens.insert("abc", 257);  // no merge makes it
  BpeSettings settings;
  settings.ignore_merges = true;
  const Bpe bpe(tokens, {{'a', 'b', 256}}, settings);
  int32_t ids[8];
  PairVerdicts verdicts;
  ASSERT_EQ(bpe.encode_bytes("abc", verdicts, ids), 1U);
  EXPECT_EQ(ids[0], 257);
  ASSERT_EQ(bpe.encode_bytes("abcd", verdicts, ids), 3U);
  EXPECT_EQ(ids[0], 256);
}

// Words of every length up to past both tables, so often that entries are given up, at the very end of a
// buffer of exactly their size (which the address sanitizer watches).
TEST(WordEncoderTest, CachedWordsEqualUncachedOnes) {
  Random random(3);
  const RandomVocabulary vocabulary(random, 40, true);
  const Bpe bpe(vocabulary.tokens, vocabulary.merges, {});
  WordCache cache;
  PairVerdicts verdicts;
  std::vector<std::string> words;
  for (int i = 0; i < 3000; ++i) {
    std::string word;
    const size_t length = 1 + random.below(40);
    for (size_t k = 0; k < length; ++k) word += "abcd"[random.below(4)];
    words.push_back(word);
  }
  words.push_back(std::string(5000, 'a'));
  words.push_back(std::string("\0", 1));
  words.push_back(std::string("\0\0", 2));
  for (int round = 0; round < 3; ++round) {
    std::vector<char> text;
    std::vector<size_t> lengths;
    std::vector<int32_t> expected;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[random.below(words.size())];
      text.insert(text.end(), word.begin(), word.end());
      lengths.push_back(word.size());
      std::vector<int32_t> ids(word.size());
      ids.resize(bpe.encode_bytes(word, verdicts, ids.data()));
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    text.shrink_to_fit();
    std::vector<int32_t> ids;
    WordEncoder encoder(bpe, cache, verdicts, text.data() + text.size(), ids);
    const char* p = text.data();
    for (const size_t length : lengths) {
      encoder.add(p, length);
      p += length;
    }
    encoder.finish();
    EXPECT_EQ(ids, expected);
  }
}

}  // namespace
}  // namespace deltatrain::text
