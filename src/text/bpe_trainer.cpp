#include "text/bpe_trainer.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace deltatrain::text {

BpeTrainer::BpeTrainer(BpeTrainerOptions options) : options_(std::move(options)) {
  const auto least = static_cast<int64_t>(options_.special_tokens.size()) + 256;
  if (options_.vocab_size < least) {
    throw ConfigError("vocabulary size: expected at least " + std::to_string(least) + " (256 bytes and " +
                      std::to_string(options_.special_tokens.size()) + " special tokens), got " +
                      std::to_string(options_.vocab_size));
  }
}

template <WordPattern pattern>
void BpeTrainer::feed_words(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const q = splitter_.next<pattern>(p, end);
    const std::string_view word(p, static_cast<size_t>(q - p));
    p = q;
    if (static_cast<int64_t>(word.size()) > kMaxWordBytes) {
      ++num_long_words_;
      continue;
    }
    ++num_words_;
    int32_t id = words_.find(word);
    if (id == kNoToken) {
      id = narrow<int32_t>(counts_.size());
      words_.insert(word, id);
      counts_.push_back(0);
    }
    ++counts_[id];
  }
}

void BpeTrainer::feed(std::string_view text) {
  switch (options_.pattern) {
    case WordPattern::kGpt2:
      return feed_words<WordPattern::kGpt2>(text);
    case WordPattern::kLlama3:
      return feed_words<WordPattern::kLlama3>(text);
    case WordPattern::kQwen2:
      return feed_words<WordPattern::kQwen2>(text);
  }
}

namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    uint64_t h = static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32 | static_cast<uint32_t>(pair.second);
    h *= 0x9e3779b97f4a7c15ULL;
    return static_cast<size_t>(h ^ h >> 32);
  }
};

// A pair with its count when it was put into the queue, and words in which it appeared then.
struct Candidate {
  int64_t count;
  Pair pair;
  std::vector<int32_t> words;

  // Whether this one comes after the other.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

// The words as symbols, the counts of their pairs, and the queue of pairs.
class PairCounts {
 public:
  PairCounts(std::vector<std::vector<int32_t>> words, const std::vector<int64_t>& counts)
      : words_(std::move(words)), counts_(counts) {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (size_t k = 0; k + 1 < words_[i].size(); ++k) {
        add({words_[i][k], words_[i][k + 1]}, 1, static_cast<int32_t>(i));
      }
    }
    enqueue();
  }

  // The next pair to merge, or one with count 0 when there is none.
  Candidate pop() {
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate top = std::move(queue_.back());
      queue_.pop_back();
      const int64_t count = pairs_[top.pair];
      if (count == top.count) return top;
      top.count = count;
      push(std::move(top));
    }
    return {0, {0, 0}, {}};
  }

  // Joins the pair into `token` in the words of the candidate.
  void merge(const Candidate& candidate, int32_t token) {
    for (const int32_t i : candidate.words) merge_in_word(i, candidate.pair, token);
    enqueue();
  }

 private:
  void add(Pair pair, int64_t change, int32_t word) {
    pairs_[pair] += change * counts_[word];
    if (change <= 0) return;
    // A word's changes come together, so a repeated word is the last one.
    std::vector<int32_t>& where = changed_[pair];
    if (where.empty() || where.back() != word) where.push_back(word);
  }

  void merge_in_word(int32_t index, Pair pair, int32_t token) {
    std::vector<int32_t>& word = words_[index];
    size_t kept = 0;  // symbols written
    for (size_t i = 0; i < word.size(); ++i) {
      if (word[i] != pair.first || i + 1 >= word.size() || word[i + 1] != pair.second) {
        word[kept++] = word[i];
        continue;
      }
      if (kept > 0) {
        add({word[kept - 1], pair.first}, -1, index);
        add({word[kept - 1], token}, 1, index);
      }
      word[kept++] = token;
      ++i;
      if (i + 1 < word.size()) {
        add({pair.second, word[i + 1]}, -1, index);
        add({token, word[i + 1]}, 1, index);
      }
    }
    word.resize(kept);
  }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }

  void enqueue() {
    for (auto& [pair, where] : changed_) {
      const int64_t count = pairs_[pair];
      if (count > 0) push({count, pair, std::move(where)});
    }
    changed_.clear();
  }

  std::vector<std::vector<int32_t>> words_;
  const std::vector<int64_t>& counts_;
  std::unordered_map<Pair, int64_t, PairHash> pairs_;
  std::unordered_map<Pair, std::vector<int32_t>, PairHash> changed_;
  std::vector<Candidate> queue_;
};

}  // namespace

TrainedVocabulary BpeTrainer::train(Reporter& reporter) const {
  TrainedVocabulary result;
  TokenTable ids;
  const auto add_token = [&](const std::string& token) {
    const int32_t known = ids.find(token);
    if (known != kNoToken) return known;
    const auto id = narrow<int32_t>(result.tokens.size());
    ids.insert(token, id);
    result.tokens.push_back(token);
    return id;
  };
  for (const std::string& token : options_.special_tokens) add_token(token);
  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  const auto printable = [](int byte) { return byte_to_printable(static_cast<uint8_t>(byte)); };
  std::sort(bytes.begin(), bytes.end(), [&](int a, int b) { return printable(a) < printable(b); });
  std::vector<int32_t> symbol_of(256);
  for (const int byte : bytes) {
    std::string token;
    append_utf8(printable(byte), token);
    symbol_of[byte] = add_token(token);
  }

  std::vector<std::vector<int32_t>> words(counts_.size());
  for (size_t i = 0; i < words.size(); ++i) {
    for (const char c : words_[static_cast<int32_t>(i)]) words[i].push_back(symbol_of[static_cast<uint8_t>(c)]);
  }
  PairCounts pairs(std::move(words), counts_);

  while (static_cast<int64_t>(result.tokens.size()) < options_.vocab_size) {
    const Candidate best = pairs.pop();
    if (best.count < 1 || best.count < options_.min_frequency) break;
    const int32_t token = add_token(result.tokens[best.pair.first] + result.tokens[best.pair.second]);
    result.merges.push_back(best.pair);
    pairs.merge(best, token);
    reporter.progress("tokenizer train", static_cast<int64_t>(result.tokens.size()), options_.vocab_size, "tokens", "");
  }
  return result;
}

}  // namespace deltatrain::text
