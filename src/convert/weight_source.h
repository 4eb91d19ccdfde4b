// The weights of a model under their Hugging Face names, whatever form they are stored in, and the
// state of the training run that made them where the form holds one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/tensor_matching.h"
#include "config/model_config.h"
#include "formats/safetensors.h"

namespace deltatrain::convert {

// What the optimizer keeps per parameter, all f32.
enum class StatePart : uint8_t {
  kMaster,    // the weight that the optimizer updates
  kExpAvg,    // first moment
  kExpAvgSq,  // second moment
};

// Where a training run stands.
struct TrainingCounters {
  int64_t iteration = 0;
  std::optional<int64_t> consumed_samples;  // position in the data
  std::optional<int64_t> completed_steps;   // updates of the optimizer
  std::optional<int64_t> global_batch_size;
  std::optional<std::string> recipe;  // resolved YAML, of a run of this program
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual std::string describe() const = 0;  // "Hugging Face folder", "checkpoint of step 1024"
  virtual int64_t step() const = 0;          // 0 where the form doesn't record it
  virtual const std::filesystem::path& folder() const = 0;  // tokenizer files are looked for here
  virtual const ModelConfig& config() const = 0;

  // What is stored, by name, tied second names left out. All of it may be read when there are no
  // differences().
  virtual const std::vector<formats::TensorSpec>& tensors() const = 0;

  // Elements [begin, begin + count) of a tensor in its stored dtype.
  virtual void read(const std::string& name, int64_t begin, int64_t count, void* out) const = 0;

  // The tensor will not be read again soon.
  virtual void release(const std::string& name) const = 0;

  // What is missing, extra or mis-shaped against the parameters of config(), under the names of the
  // form.
  virtual checkpoint::TensorDifferences differences() const;

  // Whether read_state() serves every parameter. Weights alone: false.
  virtual bool has_optimizer() const { return false; }
  // Elements [begin, begin + count) of a parameter's state. InternalError without has_optimizer().
  virtual void read_state(StatePart part, const std::string& name, int64_t begin, int64_t count,
                          float* out) const;

  // All elements of these parameters' state in f32, block by block in whatever order is quickest
  // to read; of a form without has_optimizer(), kMaster are the weights. Checksums that the form
  // has are checked, the FormatError coming behind the last block of what it covers.
  using BlockConsumer =
      std::function<void(const std::string& name, int64_t begin, std::span<const float> values)>;
  virtual void stream(StatePart part, const std::vector<std::string>& names,
                      const BlockConsumer& consume) const;

  virtual TrainingCounters counters() const { return {.iteration = step()}; }
  // What a reader should know about how the weights were taken over, one line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

// What a form that doesn't describe its model needs to be told.
struct OpenOptions {
  std::optional<ModelConfig> config;  // of a Megatron checkpoint; absent: as it says itself
};

// A native checkpoint (run, checkpoints folder or iteration), a Hugging Face folder, or a Megatron
// checkpoint (megatron_source.h). config.json beside the weights says what the model is.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path,
                                           const OpenOptions& options = {});

// Passes a tensor's elements, converted to `dtype`, to `consume` in blocks, in order.
void for_each_block(const WeightSource& source, const formats::TensorSpec& spec, DType dtype,
                    const std::function<void(const void* data, int64_t bytes)>& consume);

// The same for a parameter's state, in f32.
void for_each_state_block(const WeightSource& source, StatePart part,
                          const formats::TensorSpec& spec,
                          const std::function<void(const float* data, int64_t count)>& consume);

}  // namespace deltatrain::convert
