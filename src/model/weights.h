// Weights and configuration of a model from a folder: a native checkpoint or a Hugging Face folder.
#pragma once

#include <filesystem>

#include "checkpoint/model_folder.h"
#include "config/model_config.h"
#include "layers/parameters.h"

namespace deltatrain {

// config.json beside the weights. FileError or ConfigError naming the file, and where its model has
// other tensors than those beside it, so that no size it claims is allocated for, ConfigError naming
// the key that differs or FormatError with a list.
ModelConfig read_model_config(const checkpoint::ModelFolder& folder);

// Fills every parameter and the compute copy. Names and shapes have to agree in both directions;
// see checkpoint::ModelFolder::read_all.
void load_weights(const Context& context, const ModelConfig& config,
                  const checkpoint::ModelFolder& folder, layers::ParameterStore& store);

}  // namespace deltatrain
