// Sources over one token file: in its order, and in that of Megatron's GPTDataset.
#pragma once

#include <memory>

#include "data/sample_source.h"

namespace deltatrain::data {

// `options.prefix` is one prefix. The part of a split is a range of the file's sequences.
std::unique_ptr<const SampleSource> open_sequential_source(const SourceOptions& options);
std::unique_ptr<const SampleSource> open_gpt_source(const SourceOptions& options);

}  // namespace deltatrain::data
