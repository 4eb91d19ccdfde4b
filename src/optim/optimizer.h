// AdamW over flat buffers of parameters: state, decay groups, gradient norm and clipping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "ops/adamw.h"
#include "tensor/segment.h"

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
  Tensor master_X;    // f32 (f64): all, or where other ranks own the rest, the segments alone
  Tensor compute_X;   // bf16, or undefined where the master serves
  Tensor gradient_X;  // f32 (f64), a multiple of ops::kDecayBlock elements
  std::vector<ParameterRange> ranges;
  // What is updated here, in order, each a multiple of ops::kDecayBlock elements. More than one: the
  // state is spread over ranks, and the last is what every rank updates.
  std::vector<Segment> segments;
};

// What an update on several ranks with a state of their own each asks of the others.
class UpdateListener {
 public:
  virtual ~UpdateListener() = default;
  // sum: f64 [1] in device memory, to be replaced by the sum over ranks for the ops queued next.
  virtual void add_up(const Tensor& sum) = 0;
  // The ops that update this segment are queued.
  virtual void updated(size_t segment) = 0;
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
  // `listener` is needed where there is more than one segment.
  Result step(const Context& context, double learning_rate, int64_t step,
              const double* loss_sum = nullptr, UpdateListener* listener = nullptr);

  // State of the segments, end to end; f32 (f64).
  Tensor flat_exp_avg() const;
  Tensor flat_exp_avg_sq() const;
  int64_t num_bytes() const;

 private:
  Tensor state(const Buffer& buffer) const;

  FlatParameters parameters_;
  int64_t num_state_elements_ = 0;
  OptimizerConfig config_;
  Buffer m_, v_, decays_, scalars_;
};

}  // namespace deltatrain::optim
