#include "eval/kneser_ney.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace deltatrain::eval {

namespace {

constexpr int kBits = 21;  // per token: three fit a 64-bit word

uint64_t pack(std::span<const int32_t> ids) {
  uint64_t word = 1;  // tells lengths apart
  for (const int32_t id : ids) word = (word << kBits) | static_cast<uint64_t>(id);
  return word;
}

}  // namespace

KneserNey::KneserNey(std::span<const int32_t> tokens, int order, int64_t vocab_size)
    : levels_(static_cast<size_t>(std::clamp(order, 1, 3))), vocab_size_(vocab_size) {
  if (order < 1 || order > 3 || vocab_size < 1 || vocab_size >= (int64_t{1} << kBits)) {
    throw ConfigError(error_text("n-gram", "order and vocabulary",
                                 "1 to 3, and fewer than 2^21 tokens",
                                 std::to_string(order) + " and " + std::to_string(vocab_size)));
  }
  const auto n = static_cast<size_t>(order);
  for (size_t i = 0; i + n <= tokens.size(); ++i)
    ++levels_[n - 1].counts[pack(tokens.subspan(i, n))];
  // Lower orders: each distinct n-gram is one left neighbour of its tail.
  const uint64_t mask = (uint64_t{1} << kBits) - 1;
  for (size_t length = n; length >= 2; --length) {
    for (const auto& [word, count] : levels_[length - 1].counts) {
      uint64_t tail = 1;
      for (size_t k = length - 1; k-- > 0;) tail = (tail << kBits) | ((word >> (k * kBits)) & mask);
      ++levels_[length - 2].counts[tail];
    }
  }
  for (Level& level : levels_) {
    double once = 0, twice = 0;
    for (const auto& [word, count] : level.counts) {
      once += count == 1 ? 1 : 0;
      twice += count == 2 ? 1 : 0;
      auto& history = level.histories[word >> kBits];
      history.first += count;
      ++history.second;
    }
    level.discount = once > 0 ? once / (once + 2 * twice) : 0.5;
  }
}

double KneserNey::probability(std::span<const int32_t> history, int32_t token, size_t order) const {
  if (order == 0) return 1 / static_cast<double>(vocab_size_);
  const double lower =
      probability(history.empty() ? history : history.subspan(order > 1 ? 1 : 0), token, order - 1);
  const Level& level = levels_[order - 1];
  const uint64_t key = pack(history);
  const auto seen = level.histories.find(key);
  if (seen == level.histories.end()) return lower;
  const auto sum = static_cast<double>(seen->second.first);
  const auto counted = level.counts.find((key << kBits) | static_cast<uint64_t>(token));
  const double count = counted == level.counts.end() ? 0 : counted->second;
  return std::max(count - level.discount, 0.0) / sum +
         level.discount * seen->second.second / sum * lower;
}

double KneserNey::log_probability(std::span<const int32_t> history, int32_t token) const {
  const size_t used = std::min(history.size(), levels_.size() - 1);
  return std::log(probability(history.subspan(history.size() - used), token, used + 1));
}

double KneserNey::mean_loss(std::span<const int32_t> tokens) const {
  double sum = 0;
  for (size_t i = 1; i < tokens.size(); ++i) sum -= log_probability(tokens.first(i), tokens[i]);
  return sum / static_cast<double>(std::max<size_t>(1, tokens.size() - 1));
}

}  // namespace deltatrain::eval
