// What a recipe says about its data, as sources.
#pragma once

#include <optional>

#include "config/recipe.h"
#include "data/sample_source.h"

namespace deltatrain::data {

// ConfigError where data.train is not given.
SourceOptions training_source(const Recipe& recipe, int64_t num_ranks);

// Validation data is read in its own order: data.valid, or the second share of data.split; several
// files as Megatron blends them. Absent when there is neither.
std::optional<SourceOptions> validation_source(const Recipe& recipe);

// The most documents that a row of the recipe's data holds, for which memory is planned: 1 without
// packing, seq_length where the data cannot be opened.
int64_t max_documents_in_row(const Recipe& recipe);

}  // namespace deltatrain::data
