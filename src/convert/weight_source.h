// The weights of a model under their Hugging Face names, whatever form they are stored in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "formats/safetensors.h"

namespace deltatrain::convert {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual std::string describe() const = 0;  // "Hugging Face folder", "checkpoint of step 1024"
  virtual int64_t step() const = 0;          // 0 where the form doesn't record it
  virtual const std::filesystem::path& folder() const = 0;  // tokenizer files are looked for here
  virtual const ModelConfig& config() const = 0;

  // What is stored, by name, tied second names left out.
  virtual const std::vector<formats::TensorSpec>& tensors() const = 0;

  // Elements [begin, begin + count) of a tensor in its stored dtype.
  virtual void read(const std::string& name, int64_t begin, int64_t count, void* out) const = 0;

  // The tensor will not be read again soon.
  virtual void release(const std::string& name) const = 0;
};

// A native checkpoint (run, checkpoints folder or iteration) or a Hugging Face folder. config.json
// beside the weights says what the model is.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path);

// Passes a tensor's elements, converted to `dtype`, to `consume` in blocks, in order.
void for_each_block(const WeightSource& source, const formats::TensorSpec& spec, DType dtype,
                    const std::function<void(const void* data, int64_t bytes)>& consume);

}  // namespace deltatrain::convert
