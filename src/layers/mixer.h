// The interface of token mixers, and what every layer gets for one pass over a batch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "layers/parameters.h"
#include "ops/context.h"
#include "ops/norm_linear.h"

namespace deltatrain::layers {

// Sequence state of one layer for S sequences, carried from call to call when decoding. Which
// fields are defined depends on the mixer.
struct LayerState {
  Tensor recurrent_SGKV;  // f32 (f64): the delta rule's state
  Tensor qk_history_SWX;  // f32 (f64): last W-1 inputs of the q|k convolution
  Tensor v_history_SWX;   // f32 (f64): the same for v
  Tensor k_cache_SXHK;    // activation dtype: attention
  Tensor v_cache_SXHV;
};

// One pass over the rows of a batch.
struct Pass {
  const Context& context;
  const ParameterStore& parameters;
  ops::Sequences sequences;

  // kTrain keeps in the arena what backward needs,
  // until the caller's SaveScope ends; kInference keeps nothing.
  enum class Mode : uint8_t { kTrain, kInference } mode = Mode::kTrain;

  // Decoding: the states of the sequences, read and updated in place; lengths before this call.
  const std::vector<LayerState>* states = nullptr;
  Tensor lengths_S;  // i32

  PassListener* listener = nullptr;  // may be null

  int64_t num_rows() const { return sequences.num_rows(); }
  // Decoding, one token per sequence.
  bool is_step() const {
    return states != nullptr && mode == Mode::kInference && num_rows() == sequences.num();
  }
  Tensor save(DType dtype, const Shape& shape) const {
    return mode == Mode::kTrain ? context.arena->save(dtype, shape)
                                : context.arena->scratch(dtype, shape);
  }
  Tensor save_activation(const Shape& shape) const { return save(context.activation_dtype, shape); }
  Tensor save_stream(const Shape& shape) const { return save(context.stream_dtype(), shape); }
  Tensor scratch_activation(const Shape& shape) const {
    return context.arena->scratch(context.activation_dtype, shape);
  }
  Tensor weight(const ParameterView& view) const { return parameters.value(view); }
  Tensor gradient(const ParameterView& view) const { return parameters.gradient(view); }
};

// The input of a layer in a step: the rows before the norm, which the layer's first product does too (ops/norm_linear.h).
struct StepInput {
  Tensor x_RD;
  Tensor residual_RD;  // undefined in the first block
  Tensor sum_RD;       // out, with residual
  ParameterView norm;
  double eps = 1e-6;

  ops::NormLinear product(const Pass& pass, const ParameterView& weight, const Tensor& y_RX) const {
    return {.x_RD = x_RD,
            .residual_RD = residual_RD,
            .norm_weight_D = pass.weight(norm),
            .sum_RD = sum_RD,
            .weight_XD = pass.weight(weight),
            .y_RX = y_RX,
            .eps = eps};
  }
};

// A layer keeps between forward and backward what it saved, so one pass is in flight at a time.
class Mixer {
 public:
  virtual ~Mixer() = default;
  // x: normed input [R, D]; y: output [R, D], overwritten. `state` may be null.
  virtual void forward(const Pass& pass, const Tensor& x_RD, const Tensor& y_RD,
                       const LayerState* state) = 0;
  // forward of a pass that is a step, the norm before the layer included. Here: the norm, then forward.
  virtual void step(const Pass& pass, const StepInput& in, const Tensor& y_RD,
                    const LayerState& state);
  // dy: gradient of the output; dx: gradient of the input,
  // overwritten. Parameter gradients accumulate.
  virtual void backward(const Pass& pass, const Tensor& dy_RD, const Tensor& x_RD,
                        const Tensor& dx_RD) = 0;
  // Shapes of the states for `num_sequences` sequences
  // of at most `max_length` tokens; the data is not set.
  struct StateShape {
    Shape recurrent, qk_history, v_history, k_cache, v_cache;
  };
  virtual StateShape state_shape(int64_t num_sequences, int64_t max_length) const = 0;
};

// `prefix`: "model.layers.3.attn.".
std::unique_ptr<Mixer> make_gated_delta_net(ParameterBuilder& builder, const std::string& prefix,
                                            const ModelConfig& config);
std::unique_ptr<Mixer> make_kimi_delta_attention(ParameterBuilder& builder,
                                                 const std::string& prefix,
                                                 const ModelConfig& config);
std::unique_ptr<Mixer> make_multi_head_latent_attention(ParameterBuilder& builder,
                                                        const std::string& prefix,
                                                        const ModelConfig& config);

}  // namespace deltatrain::layers
