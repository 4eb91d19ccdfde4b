// AdamW over flat buffers of parameters: state, decay groups, gradient norm and clipping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "ops/adamw.h"

namespace deltatrain::optim {

// Whether weight decay applies to a parameter under a grouping.
//   megatron        weights of two and more axes; never A_log, dt_bias, norms, biases
//   megatron-exact  the same, and KDA's A_log, which Megatron stores with four axes
//   hf              everything but names that contain "bias" or have a path component "norm" or
//                   "..._norm"; so A_log and the rank norms of latent attention decay
bool has_weight_decay(const std::string& name, const Shape& shape, DecayGroups groups,
                      ModelFamily family);

// Where one parameter lies in the flat buffers.
struct ParameterRange {
  std::string name;
  Shape shape;
  int64_t offset = 0;  // elements
};

// All parameters of a model, end to end with padding; the optimizer keeps the addresses.
struct FlatParameters {
  Tensor master_X;    // f32 (f64), a multiple of ops::kDecayBlock elements
  Tensor compute_X;   // bf16, or undefined where the master serves
  Tensor gradient_X;  // f32 (f64)
  std::vector<ParameterRange> ranges;
};

class Optimizer {
 public:
  // Zero state. Ranges of different decay groups must
  // not share a block of ops::kDecayBlock elements.
  Optimizer(const Context& context, FlatParameters parameters, const OptimizerConfig& config,
            ModelFamily family);

  void zero_gradients(const Context& context);

  struct Result {
    double gradient_norm = 0;  // before clipping
    bool skipped = false;      // norm or loss was not finite; nothing changed
  };
  // One update with this learning rate; `step` is 1 for the first. `loss_sum`, in device memory, may be
  // null: else a loss that is not finite leaves the step out too. Waits for the device to tell the norm.
  Result step(const Context& context, double learning_rate, int64_t step,
              const double* loss_sum = nullptr);

  // State, laid out like the parameters; f32 (f64).
  Tensor flat_exp_avg() const;
  Tensor flat_exp_avg_sq() const;
  int64_t num_bytes() const;

 private:
  FlatParameters parameters_;
  OptimizerConfig config_;
  Buffer m_, v_, decays_, scalars_;
};

}  // namespace deltatrain::optim
