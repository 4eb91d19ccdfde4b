#include "eval/completions.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace deltatrain::eval {

namespace {

CompletionScore score(const Json& choice, int64_t context_length) {
  const Json& logprobs = choice.at("logprobs");
  const Json& tokens = logprobs.at("token_logprobs");
  const Json& tops = logprobs.at("top_logprobs");
  CompletionScore result;
  for (size_t j = static_cast<size_t>(context_length); j + 1 < tokens.size(); ++j) {
    const double value = tokens.at(j).get<double>();
    double largest = -std::numeric_limits<double>::infinity();
    for (const auto& top : tops.at(j).items())
      largest = std::max(largest, top.value().get<double>());
    result.log_likelihood += value;
    result.is_greedy = result.is_greedy && value == largest;
  }
  return result;
}

}  // namespace

std::vector<CompletionScore> parse_completions(const Json& response,
                                               std::span<const int64_t> context_lengths) {
  try {
    std::vector<const Json*> choices;
    for (const Json& choice : response.at("choices")) choices.push_back(&choice);
    std::sort(choices.begin(), choices.end(), [](const Json* a, const Json* b) {
      return a->at("index").get<int64_t>() < b->at("index").get<int64_t>();
    });
    if (choices.size() != context_lengths.size())
      throw FormatError(error_text("response", "choices", std::to_string(context_lengths.size()),
                                   std::to_string(choices.size())));
    std::vector<CompletionScore> scores;
    for (size_t i = 0; i < choices.size(); ++i)
      scores.push_back(score(*choices[i], context_lengths[i]));
    return scores;
  } catch (const Json::exception& error) {
    throw FormatError(
        error_text("response", error.what(), "choices with token_logprobs and top_logprobs", ""));
  }
}

}  // namespace deltatrain::eval
