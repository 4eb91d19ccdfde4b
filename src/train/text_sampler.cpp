#include "train/text_sampler.h"

#include <algorithm>

#include "base/error.h"
#include "decode/sampler.h"

namespace deltatrain::train {

namespace {

constexpr int64_t kNewTokens = 48, kMostRows = 128;

text::Tokenizer load_tokenizer(const Recipe& recipe) {
  if (recipe.data.tokenizer.empty())
    throw ConfigError(
        error_text("train", "--sample-prompt", "data.tokenizer in the recipe", "none"));
  return text::Tokenizer::load(recipe.data.tokenizer);
}

}  // namespace

TextSampler::TextSampler(const Recipe& recipe, const std::string& prompt)
    : tokenizer_(load_tokenizer(recipe)),
      prompt_(prompt),
      prompt_ids_(tokenizer_.encode(prompt, text::AddSpecialTokens::kYes)),
      num_rows_(std::min(kMostRows, recipe.train.seq_length)),
      seed_(recipe.train.seed) {
  if (prompt_ids_.empty() || static_cast<int64_t>(prompt_ids_.size()) >= num_rows_)
    throw ConfigError(error_text("train", "--sample-prompt",
                                 "1 to " + std::to_string(num_rows_ - 1) + " tokens",
                                 std::to_string(prompt_ids_.size())));
}

std::string TextSampler::continue_prompt(TrainingStep& step, int64_t iteration) const {
  std::vector<int32_t> ids = prompt_ids_, added;
  ids.resize(static_cast<size_t>(num_rows_), 0);
  auto count = static_cast<int64_t>(prompt_ids_.size());
  const decode::Sampling sampling{
      .temperature = 0.8, .top_k = 40, .seed = seed_ + static_cast<uint64_t>(iteration)};
  while (count < num_rows_ && static_cast<int64_t>(added.size()) < kNewTokens) {
    const std::vector<float> logits = step.next_token_logits(ids, count);
    const int32_t next = decode::sample(logits, sampling, count);
    if (tokenizer_.eos_id() == next) break;
    added.push_back(next);
    ids[static_cast<size_t>(count++)] = next;
  }
  // What the prompt's last token and the first new one make together is not cut apart.
  const std::string before = tokenizer_.decode(prompt_ids_, text::SkipSpecialTokens::kYes);
  std::vector<int32_t> all = prompt_ids_;
  all.insert(all.end(), added.begin(), added.end());
  const std::string whole = tokenizer_.decode(all, text::SkipSpecialTokens::kYes);
  return whole.starts_with(before) ? whole.substr(before.size())
                                   : tokenizer_.decode(added, text::SkipSpecialTokens::kYes);
}

}  // namespace deltatrain::train
