#include <numeric>

#include "formats/safetensors.h"
#include "fuzz/hostile_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile file;
  return deltatrain::fuzz::refuse_or_accept([&] {
    const deltatrain::formats::SafetensorsFile tensors(file.fill(data, size));
    volatile unsigned sum = 0;
    for (const auto& [name, tensor] : tensors.tensors()) {
      for (const std::byte value : tensor.bytes) sum = sum + std::to_integer<unsigned>(value);
    }
  });
}
