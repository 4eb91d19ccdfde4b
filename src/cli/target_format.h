// Names of the forms in which models are written, shared by convert and init.
#pragma once

#include <string>

#include "convert/convert.h"

namespace deltatrain::cli {

// "native", "hf" or "megatron", as the options' checks have made sure.
inline convert::TargetFormat target_format(const std::string& name) {
  if (name == "native") return convert::TargetFormat::kNative;
  if (name == "megatron") return convert::TargetFormat::kMegatron;
  return convert::TargetFormat::kHuggingFace;
}

}  // namespace deltatrain::cli
