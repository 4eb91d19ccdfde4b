#include "layers/mlp.h"

#include "ops/linear.h"
#include "ops/linear_swiglu.h"

namespace deltatrain::layers {

Mlp::Mlp(ParameterBuilder& builder, const std::string& prefix, const ModelConfig& config)
    : width_(config.intermediate_size) {
  const int64_t D = config.hidden_size;
  gate_up_ =
      builder.add_group({{.name = prefix + "gate_proj.weight", .checkpoint_shape = {width_, D}},
                         {.name = prefix + "up_proj.weight", .checkpoint_shape = {width_, D}}});
  down_ = builder.add({.name = prefix + "down_proj.weight", .checkpoint_shape = {D, width_}});
}

void Mlp::forward(const Pass& pass, const Tensor& x_RD, const Tensor& y_RD) {
  const int64_t R = pass.num_rows();
  gate_up_RX_ = pass.save_activation({R, 2 * width_});
  activated_RF_ = pass.save_activation({R, width_});
  ops::linear_swiglu_forward(pass.context, {.x_RD = x_RD,
                                            .weight_XD = pass.weight(gate_up_),
                                            .gate_up_RX = gate_up_RX_,
                                            .y_RF = activated_RF_});
  ops::linear_forward(pass.context,
                      {.x_RD = activated_RF_, .weight_XD = pass.weight(down_), .y_RX = y_RD});
}

void Mlp::step(const Pass& pass, const StepInput& in, const Tensor& y_RD) {
  const Tensor activated_RF = pass.scratch_activation({pass.num_rows(), width_});
  ops::NormLinear product = in.product(pass, gate_up_, activated_RF);
  product.activation = ops::NormLinear::Activation::kSwiglu;
  ops::norm_linear(pass.context, product);
  ops::linear_forward(pass.context,
                      {.x_RD = activated_RF, .weight_XD = pass.weight(down_), .y_RX = y_RD});
}

void Mlp::backward(const Pass& pass, const Tensor& dy_RD, const Tensor& x_RD, const Tensor& dx_RD) {
  ops::linear_backward(pass.context, {.dy_RX = dy_RD,
                                      .x_RD = activated_RF_,
                                      .weight_XD = Tensor(),
                                      .dx_RD = Tensor(),
                                      .dweight_XD = pass.gradient(down_)});
  // Overwrites the saved gate and up with their gradients: nobody reads them again.
  ops::linear_swiglu_backward(pass.context, {.dz_RD = dy_RD,
                                             .weight_DF = pass.weight(down_),
                                             .gate_up_RX = gate_up_RX_,
                                             .dgate_up_RX = gate_up_RX_});
  ops::linear_backward(pass.context, {.dy_RX = gate_up_RX_,
                                      .x_RD = x_RD,
                                      .weight_XD = pass.weight(gate_up_),
                                      .dx_RD = dx_RD,
                                      .dweight_XD = pass.gradient(gate_up_)});
}

}  // namespace deltatrain::layers
