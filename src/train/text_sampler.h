// Text of the model in training, for people to look at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "model/training_step.h"
#include "text/tokenizer.h"

namespace deltatrain::train {

class TextSampler {
 public:
  // ConfigError without data.tokenizer, or when the prompt has no tokens or too many.
  TextSampler(const Recipe& recipe, const std::string& prompt);

  const std::string& prompt() const { return prompt_; }
  // Up to 48 tokens behind the prompt, to the end-of-text token: at temperature 0.8 among the 40
  // most likely, random by the recipe's seed and `step`. Each token is a pass over the rows of one
  // short sequence with the weights as they are; nothing is kept between them, so no memory is
  // needed beyond that of training.
  std::string continue_prompt(TrainingStep& step, int64_t iteration) const;

 private:
  text::Tokenizer tokenizer_;
  std::string prompt_;
  std::vector<int32_t> prompt_ids_;
  int64_t num_rows_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace deltatrain::train
