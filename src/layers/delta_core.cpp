#include "layers/delta_core.h"

#include <cmath>

#include "base/check.h"
#include "ops/delta_step.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"
#include "ops/short_conv_norm.h"

namespace deltatrain::layers {

DeltaCore::DeltaCore(ParameterBuilder& builder, const std::string& prefix,
                     const DeltaCoreConfig& config, Init a_init, double a_low)
    : config_(config) {
  const int64_t key_dim = config.num_heads * config.head_k;
  const auto conv = [&](const char* name, int64_t channels) {
    return ParameterInfo{.name = prefix + name,
                         .checkpoint_shape = {channels, 1, config.conv_size},
                         .storage = Storage::kMaster};
  };
  qk_conv_ =
      builder.add_group({conv("q_conv1d.weight", key_dim), conv("k_conv1d.weight", key_dim)});
  v_conv_ = builder.add(conv("v_conv1d.weight", config.v_width()));
  a_log_ = builder.add({.name = prefix + "A_log",
                        .checkpoint_shape = {config.num_v_heads},
                        .init = a_init,
                        .init_low = a_low,
                        .storage = Storage::kMaster});
  dt_bias_ = builder.add({.name = prefix + "dt_bias",
                          .checkpoint_shape = {config.num_v_heads * config.gate_k},
                          .init = Init::kInverseSoftplus,
                          .storage = Storage::kMaster});
  dt_bias_.shape = {config.num_v_heads, config.gate_k};
  o_norm_ = builder.add({.name = prefix + "o_norm.weight",
                         .checkpoint_shape = {config.head_v},
                         .init = Init::kOne,
                         .storage = Storage::kMaster});
}

void DeltaCore::forward(const Pass& pass, const Inputs& in, const Tensor& y_RX,
                        const LayerState* state) {
  const int64_t R = pass.num_rows();
  const int64_t H = config_.num_heads, G = config_.num_v_heads, K = config_.head_k,
                V = config_.head_v;
  const DType statistics = pass.context.statistics_dtype();
  if (pass.is_step()) return step(pass, in, y_RX, *state);

  q_RHK_ = pass.save_activation({R, H, K});
  k_RHK_ = pass.save_activation({R, H, K});
  q_inv_norm_RH_ = pass.save(statistics, {R, H});
  k_inv_norm_RH_ = pass.save(statistics, {R, H});
  v_RX_ = pass.save_activation({R, G * V});
  g_RGK_ = pass.save(statistics, {R, G, config_.gate_k});
  beta_RG_ = pass.save(statistics, {R, G});
  o_RGV_ = pass.save_activation({R, G, V});
  inv_rms_RG_ = pass.save(statistics, {R, G});
  ops::ShortConvNormForward conv_norm{.x_RX = in.qk_RX,
                                      .weight_XW = pass.weight(qk_conv_),
                                      .sequences = pass.sequences,
                                      .q_RHK = q_RHK_,
                                      .k_RHK = k_RHK_,
                                      .q_inv_norm_RH = q_inv_norm_RH_,
                                      .k_inv_norm_RH = k_inv_norm_RH_};
  if (state != nullptr) {
    conv_norm.initial_history_SWX = conv_norm.final_history_SWX = state->qk_history_SWX;
  }
  ops::short_conv_norm_forward(pass.context, conv_norm);
  ops::ShortConvForward conv{.x_RX = in.v_RX,
                             .weight_XW = pass.weight(v_conv_),
                             .sequences = pass.sequences,
                             .y_RX = v_RX_};
  if (state != nullptr) conv.initial_history_SWX = conv.final_history_SWX = state->v_history_SWX;
  ops::short_conv_forward(pass.context, conv);

  ops::delta_gate_forward(pass.context, {.a_RGK = in.a_RX.split_last(G, config_.gate_k),
                                         .b_RG = in.b_RG,
                                         .A_log_G = pass.weight(a_log_),
                                         .dt_bias_GK = pass.weight(dt_bias_),
                                         .g_RGK = g_RGK_,
                                         .beta_RG = beta_RG_,
                                         .form = config_.decay,
                                         .lower_bound = config_.lower_bound,
                                         .beta_scale = config_.beta_scale});

  ops::GatedDeltaRuleForward rule{.q_RHK = q_RHK_,
                                  .k_RHK = k_RHK_,
                                  .v_RGV = v_RX_.split_last(G, V),
                                  .g_RGK = g_RGK_,
                                  .beta_RG = beta_RG_,
                                  .sequences = pass.sequences,
                                  .o_RGV = o_RGV_,
                                  .scale = 1 / std::sqrt(static_cast<double>(K))};
  if (state != nullptr) rule.initial_state_SGKV = rule.final_state_SGKV = state->recurrent_SGKV;
  delta_saved_ = Tensor();
  if (pass.mode == Pass::Mode::kTrain) {
    delta_saved_ = pass.save(DType::kU8, {ops::gated_delta_rule_saved_bytes(pass.context, rule)});
    rule.saved = delta_saved_;
  }
  ops::gated_delta_rule_forward(pass.context, rule);

  const Tensor y_RGV = y_RX.split_last(G, V);
  if (config_.output_gate == DeltaCoreConfig::OutputGate::kNone) {
    ops::rms_norm_forward(pass.context, {.x_RD = o_RGV_.reshape({R * G, V}),
                                         .weight_D = pass.weight(o_norm_),
                                         .y_RD = y_RX.reshape({R * G, V}),
                                         .inv_rms_R = inv_rms_RG_.reshape({R * G}),
                                         .eps = config_.norm_eps});
  } else {
    ops::gated_rms_norm_forward(
        pass.context, {.o_RGV = o_RGV_,
                       .gate_RGV = in.z_RX.split_last(G, V),
                       .weight_V = pass.weight(o_norm_),
                       .y_RGV = y_RGV,
                       .inv_rms_RG = inv_rms_RG_,
                       .eps = config_.norm_eps,
                       .activation = config_.output_gate == DeltaCoreConfig::OutputGate::kSilu
                                         ? ops::GateActivation::kSilu
                                         : ops::GateActivation::kSigmoid});
  }
}

void DeltaCore::step(const Pass& pass, const Inputs& in, const Tensor& y_RX,
                     const LayerState& state, const LowRank& low_rank) const {
  ops::DeltaStep step{.qk_SX = in.qk_RX,
                      .v_SX = in.v_RX,
                      .b_SG = in.b_RG,
                      .z_SX = in.z_RX,
                      .qk_conv_XW = pass.weight(qk_conv_),
                      .v_conv_XW = pass.weight(v_conv_),
                      .A_log_G = pass.weight(a_log_),
                      .dt_bias_GK = pass.weight(dt_bias_),
                      .norm_weight_V = pass.weight(o_norm_),
                      .sequences = pass.sequences,
                      .qk_history_SWX = state.qk_history_SWX,
                      .v_history_SWX = state.v_history_SWX,
                      .state_SGKV = state.recurrent_SGKV,
                      .y_SX = y_RX,
                      .form = config_.decay,
                      .lower_bound = config_.lower_bound,
                      .beta_scale = config_.beta_scale,
                      .norm_eps = config_.norm_eps,
                      .activation = config_.output_gate == DeltaCoreConfig::OutputGate::kSilu
                                        ? ops::GateActivation::kSilu
                                        : ops::GateActivation::kSigmoid};
  if (low_rank.a_low_RP.defined()) {
    step.a_low_SP = low_rank.a_low_RP;
    step.a_weight_XP = pass.weight(low_rank.a_weight);
    step.z_low_SP = low_rank.z_low_RP;
    step.z_weight_XP = pass.weight(low_rank.z_weight);
    step.z_bias_X = pass.weight(low_rank.z_bias);
  } else {
    step.a_SGK = in.a_RX.split_last(config_.num_v_heads, config_.gate_k);
  }
  ops::delta_step(pass.context, step);
}

void DeltaCore::backward(const Pass& pass, const Tensor& dy_RX, const Inputs& in,
                         const Inputs& d_in) {
  const int64_t R = pass.num_rows();
  const int64_t H = config_.num_heads, G = config_.num_v_heads, K = config_.head_k,
                V = config_.head_v;
  const DType statistics = pass.context.statistics_dtype();
  const Arena::ScratchScope scope(*pass.context.arena);

  const Tensor do_RGV = pass.scratch_activation({R, G, V});
  if (config_.output_gate == DeltaCoreConfig::OutputGate::kNone) {
    ops::rms_norm_backward(pass.context, {.dy_RD = dy_RX.reshape({R * G, V}),
                                          .sum_RD = o_RGV_.reshape({R * G, V}),
                                          .weight_D = pass.weight(o_norm_),
                                          .inv_rms_R = inv_rms_RG_.reshape({R * G}),
                                          .dx_RD = do_RGV.reshape({R * G, V}),
                                          .dweight_D = pass.gradient(o_norm_)});
  } else {
    ops::gated_rms_norm_backward(
        pass.context, {.dy_RGV = dy_RX.split_last(G, V),
                       .o_RGV = o_RGV_,
                       .gate_RGV = in.z_RX.split_last(G, V),
                       .weight_V = pass.weight(o_norm_),
                       .inv_rms_RG = inv_rms_RG_,
                       .do_RGV = do_RGV,
                       .dgate_RGV = d_in.z_RX.split_last(G, V),
                       .dweight_V = pass.gradient(o_norm_),
                       .activation = config_.output_gate == DeltaCoreConfig::OutputGate::kSilu
                                         ? ops::GateActivation::kSilu
                                         : ops::GateActivation::kSigmoid});
  }

  const Tensor dq_RHK = pass.scratch_activation({R, H, K});
  const Tensor dk_RHK = pass.scratch_activation({R, H, K});
  const Tensor dv_RX = pass.scratch_activation({R, G * V});
  const Tensor dg_RGK = pass.context.arena->scratch(statistics, {R, G, config_.gate_k});
  const Tensor dbeta_RG = pass.context.arena->scratch(statistics, {R, G});
  ops::gated_delta_rule_backward(pass.context, {.do_RGV = do_RGV,
                                                .q_RHK = q_RHK_,
                                                .k_RHK = k_RHK_,
                                                .v_RGV = v_RX_.split_last(G, V),
                                                .g_RGK = g_RGK_,
                                                .beta_RG = beta_RG_,
                                                .sequences = pass.sequences,
                                                .saved = delta_saved_,
                                                .dq_RHK = dq_RHK,
                                                .dk_RHK = dk_RHK,
                                                .dv_RGV = dv_RX.split_last(G, V),
                                                .dg_RGK = dg_RGK,
                                                .dbeta_RG = dbeta_RG,
                                                .scale = 1 / std::sqrt(static_cast<double>(K))});

  ops::delta_gate_backward(pass.context, {.dg_RGK = dg_RGK,
                                          .dbeta_RG = dbeta_RG,
                                          .a_RGK = in.a_RX.split_last(G, config_.gate_k),
                                          .b_RG = in.b_RG,
                                          .A_log_G = pass.weight(a_log_),
                                          .dt_bias_GK = pass.weight(dt_bias_),
                                          .da_RGK = d_in.a_RX.split_last(G, config_.gate_k),
                                          .db_RG = d_in.b_RG,
                                          .dA_log_G = pass.gradient(a_log_),
                                          .ddt_bias_GK = pass.gradient(dt_bias_),
                                          .form = config_.decay,
                                          .lower_bound = config_.lower_bound,
                                          .beta_scale = config_.beta_scale});

  ops::short_conv_backward(pass.context, {.dy_RX = dv_RX,
                                          .x_RX = in.v_RX,
                                          .weight_XW = pass.weight(v_conv_),
                                          .sequences = pass.sequences,
                                          .dx_RX = d_in.v_RX,
                                          .dweight_XW = pass.gradient(v_conv_)});
  ops::short_conv_norm_backward(pass.context, {.dq_RHK = dq_RHK,
                                               .dk_RHK = dk_RHK,
                                               .q_RHK = q_RHK_,
                                               .k_RHK = k_RHK_,
                                               .q_inv_norm_RH = q_inv_norm_RH_,
                                               .k_inv_norm_RH = k_inv_norm_RH_,
                                               .x_RX = in.qk_RX,
                                               .weight_XW = pass.weight(qk_conv_),
                                               .sequences = pass.sequences,
                                               .dx_RX = d_in.qk_RX,
                                               .dweight_XW = pass.gradient(qk_conv_)});
}

Mixer::StateShape DeltaCore::state_shape(int64_t num_sequences) const {
  return {.recurrent = {num_sequences, config_.num_v_heads, config_.head_k, config_.head_v},
          .qk_history = {num_sequences, config_.conv_size - 1, config_.qk_width()},
          .v_history = {num_sequences, config_.conv_size - 1, config_.v_width()},
          .k_cache = {},
          .v_cache = {}};
}

}  // namespace deltatrain::layers
