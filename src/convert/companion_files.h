// The small files beside a model's weights: config.json, generation_config.json, the tokenizer's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/checkpoint.h"
#include "config/model_config.h"

namespace deltatrain::convert {

// The files of a tokenizer, as transformers looks for them. `path`: a folder, or one
// tokenizer.json. Where there is a tokenizer.json but no tokenizer_config.json, one is made that
// transformers loads without the network: class, length, and BOS, EOS and padding tokens as the
// config's ids name them. Empty when there is none. FormatError for a tokenizer.json that isn't
// JSON.
std::vector<checkpoint::CompanionFile> tokenizer_files(const std::filesystem::path& path,
                                                       const ModelConfig& config);

// config.json for weights of `dtype`, and generation_config.json (the source folder's own where it
// has one).
std::vector<checkpoint::CompanionFile> model_files(const ModelConfig& config, DType dtype,
                                                   const std::filesystem::path& source_folder);

}  // namespace deltatrain::convert
