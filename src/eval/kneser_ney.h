// Interpolated Kneser-Ney n-gram models of token ids: the baseline that a trained network has to beat.
//
//   P_n(w | h) = max(c(h w) - D_n, 0) / c(h) + D_n N(h .) / c(h) P_{n-1}(w | h')
//
// h' is h without its first token. The highest order counts occurrences; lower orders count distinct
// left neighbours (continuation counts). N(h .) is the number of distinct tokens seen after h.
// D_n = n1 / (n1 + 2 n2) from the numbers of n-grams counted once and twice. Below the unigram lies the
// uniform distribution over the vocabulary, so every token has a probability. A history never seen
// passes all its weight down.
// Source: Chen and Goodman, "An empirical study of smoothing techniques for language modeling", 1998.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace deltatrain::eval {

class KneserNey {
 public:
  // order: 1, 2 or 3. Token ids in [0, vocab_size), vocab_size below 2^21. ConfigError otherwise.
  KneserNey(std::span<const int32_t> tokens, int order, int64_t vocab_size);

  // Natural logarithm of the probability of `token` after the last order - 1 tokens of `history`;
  // fewer give the lower order.
  double log_probability(std::span<const int32_t> history, int32_t token) const;

  // Mean of -log_probability over tokens 1, 2, ... of a stream, each given all that came before it.
  double mean_loss(std::span<const int32_t> tokens) const;

 private:
  struct Level {                                   // n-grams of one length
    std::unordered_map<uint64_t, int32_t> counts;  // packed n-gram -> count
    std::unordered_map<uint64_t, std::pair<int64_t, int32_t>>
        histories;  // packed history -> (sum, distinct)
    double discount = 0;
  };

  double probability(std::span<const int32_t> history, int32_t token, size_t order) const;

  std::vector<Level> levels_;  // index n - 1
  int64_t vocab_size_;
};

}  // namespace deltatrain::eval
