#include "eval/kneser_ney.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace deltatrain::eval {
namespace {

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab) {
  const RandomStream stream(3, "tokens");
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    // A product of two uniforms: some tokens are frequent, some rare.
    const double u = stream.uniform(2 * static_cast<uint64_t>(i)) *
                     stream.uniform(2 * static_cast<uint64_t>(i) + 1);
    tokens.push_back(static_cast<int32_t>(u * static_cast<double>(vocab)));
  }
  return tokens;
}

// By hand from the stream 0 1 0 1 2 with a vocabulary of 4:
// bigrams 01 (2), 10 (1), 12 (1): n1 = 2, n2 = 1, D2 = 1/2. Continuation counts: 0, 1 and 2 have
// one left neighbour each: n1 = 3, n2 = 0, D1 = 1.
TEST(KneserNeyTest, BigramByHand) {
  const std::vector<int32_t> tokens = {0, 1, 0, 1, 2};
  const KneserNey model(tokens, 2, 4);
  const double uniform = 1.0 / 4;
  const double unigram = (1 - 1.0) / 3 + 1.0 * 3 / 3 * uniform;  // of every token
  const std::array<int32_t, 1> after_one = {1};
  EXPECT_NEAR(model.log_probability(after_one, 2), std::log((1 - 0.5) / 2 + 0.5 * 2 / 2 * unigram),
              1e-12);
  EXPECT_NEAR(model.log_probability(after_one, 3), std::log(0.5 * 2 / 2 * unigram), 1e-12);
  const std::array<int32_t, 1> after_three = {3};
  EXPECT_NEAR(model.log_probability(after_three, 0), std::log(unigram), 1e-12);
}

TEST(KneserNeyTest, ProbabilitiesSumToOne) {
  const int64_t vocab = 17;
  const std::vector<int32_t> tokens = random_tokens(400, vocab);
  for (const int order : {1, 2, 3}) {
    const KneserNey model(tokens, order, vocab);
    for (const std::vector<int32_t>& history :
         {std::vector<int32_t>{}, {0}, {0, 1}, {16, 16}, {5, 2, 1}}) {
      double sum = 0;
      for (int32_t token = 0; token < vocab; ++token)
        sum += std::exp(model.log_probability(history, token));
      EXPECT_NEAR(sum, 1, 1e-12) << "order " << order;
    }
  }
}

TEST(KneserNeyTest, HigherOrdersFitARepeatingStreamBetter) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 300; ++i)
    tokens.push_back(std::array<int32_t, 5>{0, 1, 0, 2, 3}[static_cast<size_t>(i % 5)]);
  EXPECT_LT(KneserNey(tokens, 2, 4).mean_loss(tokens), KneserNey(tokens, 1, 4).mean_loss(tokens));
  EXPECT_LT(KneserNey(tokens, 3, 4).mean_loss(tokens),
            KneserNey(tokens, 2, 4).mean_loss(tokens) - 0.1);
}

TEST(KneserNeyTest, RefusesOrdersItHasNot) {
  const std::vector<int32_t> tokens = {0, 1};
  EXPECT_THROW(KneserNey(tokens, 4, 4), ConfigError);
  EXPECT_THROW(KneserNey(tokens, 2, int64_t{1} << 21), ConfigError);
}

}  // namespace
}  // namespace deltatrain::eval
