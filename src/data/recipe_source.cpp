#include "data/recipe_source.h"

#include <algorithm>

#include "base/error.h"

namespace deltatrain::data {

SourceOptions training_source(const Recipe& recipe, int64_t num_ranks) {
  if (recipe.data.train.empty()) {
    throw ConfigError(error_text("recipe", "data.train",
                                 "the prefix of token files, in the file or by --set", "nothing"));
  }
  SourceOptions options;
  options.prefix = recipe.data.train;
  options.order = recipe.data.order;
  options.seq_length = recipe.train.seq_length;
  options.num_samples = recipe.train.train_iters * recipe.train.global_batch_size;
  options.seed = recipe.train.seed;
  options.vocab_size = recipe.model.vocab_size;
  if (recipe.data.eod_mask_loss)
    options.eod_id = static_cast<int32_t>(recipe.model.eos_token_id.value());
  options.packed = recipe.data.packed_documents;
  options.document_id = static_cast<int32_t>(recipe.model.bos_token_id.value_or(-1));
  options.split = recipe.data.split.value_or("");
  options.micro_batch_size = recipe.train.micro_batch_size;
  options.num_ranks = num_ranks;
  return options;
}

std::optional<SourceOptions> validation_source(const Recipe& recipe) {
  SourceOptions options = training_source(recipe, 1);
  if (recipe.data.valid.has_value()) {
    options.prefix = *recipe.data.valid;
    options.split.clear();
  } else if (!recipe.data.split.has_value() ||
             !parse_split(*recipe.data.split)[static_cast<size_t>(SplitPart::kValid)].has_value()) {
    return std::nullopt;
  }
  options.part = SplitPart::kValid;
  if (parse_blend_path(options.prefix).prefixes.size() == 1) {
    options.order = DataOrder::kSequential;
    options.num_samples = 0;
    return options;
  }
  // Of several files a part is only defined as Megatron's: as many samples as its validations take.
  const TrainConfig& train = recipe.train;
  const int64_t validations =
      (train.eval_interval > 0 ? train.train_iters / train.eval_interval : 0) + 1;
  options.order = DataOrder::kMegatron;
  options.num_samples = validations * train.eval_iters * train.global_batch_size;
  return options;
}

int64_t max_documents_in_row(const Recipe& recipe) {
  if (!recipe.data.packed_documents) return 1;
  try {
    int64_t most = open_sample_source(training_source(recipe, 1))->max_starts();
    if (const auto validation = validation_source(recipe); validation.has_value())
      most = std::max(most, open_sample_source(*validation)->max_starts());
    return most;
  } catch (const Error&) {  // missing or broken: training will say what is wrong with it
    return recipe.train.seq_length;
  }
}

}  // namespace deltatrain::data
