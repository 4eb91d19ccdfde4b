// Which parameters a model has, under their Hugging Face names: the table that every conversion is
// checked against, in both directions.
#pragma once

#include <string>
#include <vector>

#include "config/model_config.h"
#include "formats/safetensors.h"

namespace deltatrain::convert {

// Sorted by name; dtype f32 throughout. lm_head.weight is there only when the head is untied.
std::vector<formats::TensorSpec> model_parameters(const ModelConfig& config);

// "model.layers.LAYER."
std::string layer_prefix(int64_t layer);

}  // namespace deltatrain::convert
