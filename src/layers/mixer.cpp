#include "layers/mixer.h"

#include "ops/rms_norm.h"

namespace deltatrain::layers {

void Mixer::step(const Pass& pass, const StepInput& in, const Tensor& y_RD,
                 const LayerState& state) {
  const Tensor normed_RD = pass.scratch_activation(in.x_RD.shape());
  const Tensor inv_rms_R =
      pass.context.arena->scratch(pass.context.statistics_dtype(), {pass.num_rows()});
  ops::rms_norm_forward(pass.context, {.x_RD = in.x_RD,
                                       .residual_RD = in.residual_RD,
                                       .weight_D = pass.weight(in.norm),
                                       .sum_RD = in.sum_RD,
                                       .y_RD = normed_RD,
                                       .inv_rms_R = inv_rms_R,
                                       .eps = in.eps});
  forward(pass, normed_RD, y_RD, &state);
}

}  // namespace deltatrain::layers
