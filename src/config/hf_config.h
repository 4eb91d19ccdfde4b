// A Hugging Face config.json in the form of FLA's
// GatedDeltaNetConfig and KDAConfig, to and from ModelConfig.
#pragma once

#include <string>
#include <string_view>

#include "base/dtype.h"
#include "config/model_config.h"

namespace deltatrain {

// Missing keys take FLA's class defaults, which differ by model_type. Keys that say how FLA
// computes (fuse_norm, attn_mode, use_cache, ...) and unknown ones are ignored; keys that would
// change the model into one that this program does not have are refused by name. The result has
// passed validate(). Throws ConfigError, "WHERE: KEY: expected ..., got ...".
ModelConfig model_config_from_hf(std::string_view json, const std::string& where);

// The text of a config.json that FLA's classes and model_config_from_hf() read back as the same
// model. `dtype` is that of the weights beside it (torch_dtype): f32, bf16 or f16.
std::string model_config_to_hf(const ModelConfig& config, DType dtype);

}  // namespace deltatrain
