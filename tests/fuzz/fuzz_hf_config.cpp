#include "config/hf_config.h"
#include "fuzz/hostile_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return deltatrain::fuzz::refuse_or_accept([&] {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const deltatrain::ModelConfig config = deltatrain::model_config_from_hf(text, "fuzz");
    // What is accepted has to survive being written and read back.
    const std::string written = deltatrain::model_config_to_hf(config, deltatrain::DType::kF32);
    if (!(deltatrain::model_config_from_hf(written, "written") == config)) std::abort();
  });
}
