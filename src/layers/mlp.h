// The MLP of a block: y = swiglu(x W_gate^T, x W_up^T) W_down^T, no biases.
#pragma once

#include <string>

#include "layers/mixer.h"

namespace deltatrain::layers {

class Mlp {
 public:
  Mlp(ParameterBuilder& builder, const std::string& prefix, const ModelConfig& config);

  void forward(const Pass& pass, const Tensor& x_RD, const Tensor& y_RD);
  // forward of a pass that is a step, the norm before it included.
  void step(const Pass& pass, const StepInput& in, const Tensor& y_RD);
  void backward(const Pass& pass, const Tensor& dy_RD, const Tensor& x_RD, const Tensor& dx_RD);

 private:
  int64_t width_;
  ParameterView gate_up_, down_;
  Tensor gate_up_RX_, activated_RF_;  // saved
};

}  // namespace deltatrain::layers
