// The weights that a reference trainer would start from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/torch_random.h"
#include "config/model_config.h"
#include "convert/weight_source.h"

namespace deltatrain::convert {

enum class InitLike : uint8_t {
  kFla,       // bit for bit what FLA's constructors give after torch.manual_seed(seed) on the CPU
  kMegatron,  // in distribution what Megatron with Primus draws
};

using WeightConsumer = std::function<void(const std::string& name, std::vector<float>&& values)>;

// Passes every parameter on, in the order of the draws, and leaves the generator where building the
// model leaves torch's. Equal bits to torch 2.11 on x86-64 but for A_log and dt_bias, which go
// through its vector logarithm and exponential and may differ in the last bit.
void draw_fla_weights(const ModelConfig& config, TorchGenerator& generator,
                      const WeightConsumer& consume);

// Matrices and embedding normal(0, initializer_range); convolutions, and KDA's f_proj.1 and
// g_proj.1, uniform within 1 / sqrt(fan_in) as torch's layers start; A_log = ln U(1, 16); dt_bias
// as FLA; norms 1.
void draw_megatron_weights(const ModelConfig& config, TorchGenerator& generator,
                           const WeightConsumer& consume);

// All of them in memory, f32, as a source for write_model.
std::unique_ptr<WeightSource> make_initial_weights(const ModelConfig& config, InitLike like,
                                                   uint64_t seed);

}  // namespace deltatrain::convert
