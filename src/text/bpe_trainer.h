// Learns a byte-level BPE vocabulary from text: the merges
// that the reference's BpeTrainer gives for the same words.
//
// Words are counted first. Then, until the vocabulary is full, the pair of neighbours with the highest count
// becomes a token; of pairs with equal counts, the one with the smaller ids. Counts are kept up to date by
// visiting only the words in which the pair occurs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/reporter.h"
#include "text/bpe.h"
#include "text/word_splitter.h"

namespace deltatrain::text {

struct BpeTrainerOptions {
  int64_t vocab_size = 0;     // special tokens and the 256 bytes included
  int64_t min_frequency = 0;  // pairs seen less often make no token
  WordPattern pattern = WordPattern::kLlama3;
  std::vector<std::string> special_tokens;  // get the first ids
};

struct TrainedVocabulary {
  std::vector<std::string> tokens;                  // by id; special tokens, bytes, merges in order; printable
  std::vector<std::pair<int32_t, int32_t>> merges;  // in order of rank
};

class BpeTrainer {
 public:
  // Throws ConfigError for a vocabulary that cannot hold the special tokens and the bytes.
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of one well-formed text.
  void feed(std::string_view text);

  // Fewer tokens than asked for if the text has no more pairs.
  TrainedVocabulary train(Reporter& reporter) const;

  int64_t num_words() const { return num_words_; }
  int64_t num_distinct_words() const { return words_.size(); }
  // Words of more than kMaxWordBytes teach nothing and would cost much; they are left out.
  int64_t num_long_words() const { return num_long_words_; }
  static constexpr int64_t kMaxWordBytes = 4096;

 private:
  template <WordPattern pattern>
  void feed_words(std::string_view text);

  BpeTrainerOptions options_;
  WordSplitter splitter_;
  TokenTable words_;  // ids in order of appearance
  std::vector<int64_t> counts_;
  int64_t num_words_ = 0;
  int64_t num_long_words_ = 0;
};

struct WrittenTokenizer {
  TrainedVocabulary vocabulary;
  WordPattern pattern = WordPattern::kLlama3;
  int64_t num_special_tokens = 0;  // the first ids
  std::string bos, eos;            // special tokens, or empty
  bool bos_in_front = true;        // whether encoding a text puts bos in front
};

// Writes tokenizer.json and tokenizer_config.json, as `tokenizers` and `transformers` load them.
void write_tokenizer(const std::filesystem::path& folder, const WrittenTokenizer& tokenizer);

}  // namespace deltatrain::text
