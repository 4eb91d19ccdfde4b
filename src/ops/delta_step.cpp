#include "ops/delta_step.h"

#include <cmath>
#include <string>

#include "ops/check_arguments.h"
#include "ops/gated_delta_rule.h"
#include "ops/l2_norm.h"
#include "ops/linear.h"
#include "ops/op_table.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"

namespace deltatrain::ops {

namespace {

struct Sizes {
  int64_t S, H, G, K, V, W, gate_width;
  bool is_low_rank;
};

Sizes expect_arguments(const DeltaStep& args) {
  constexpr std::string_view op = "delta_step";
  const ArgumentCheck check(op, "qk_SX", args.qk_SX);
  check.activation("qk_SX", args.qk_SX, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t S = args.qk_SX.size(0);
  check.statistic("state_SGKV", args.state_SGKV, {S, kAnySize, kAnySize, kAnySize});
  const int64_t G = args.state_SGKV.size(1), K = args.state_SGKV.size(2),
                V = args.state_SGKV.size(3);
  const int64_t H = args.qk_SX.size(1) / (2 * K);
  check.that(H > 0 && args.qk_SX.size(1) == 2 * H * K && G % H == 0, "qk_SX",
             "twice " + std::to_string(K) + " columns per head, and a divisor of " +
                 std::to_string(G) + " heads",
             std::to_string(args.qk_SX.size(1)) + " columns");
  check.activation("v_SX", args.v_SX, {S, G * V}, Layout::kStridedRows);
  const bool is_low_rank = args.a_low_SP.defined();
  int64_t gate_width = K;
  if (is_low_rank) {
    check.that(!args.a_SGK.defined(), "a_SGK", "no tensor beside a_low_SP", "one");
    check.that(!args.z_SX.defined(), "z_SX", "no tensor beside a_low_SP", "one");
    check.activation("a_low_SP", args.a_low_SP, {S, kAnySize}, Layout::kStridedRows);
    const int64_t P = args.a_low_SP.size(1);
    check.activation("a_weight_XP", args.a_weight_XP, {G * K, P});
    check.activation("z_low_SP", args.z_low_SP, {S, P}, Layout::kStridedRows);
    check.activation("z_weight_XP", args.z_weight_XP, {G * V, P});
    check.statistic("z_bias_X", args.z_bias_X, {G * V});
  } else {
    check.activation("a_SGK", args.a_SGK, {S, G, kAnySize}, Layout::kStridedRows);
    gate_width = args.a_SGK.size(2);
  }
  check.that(gate_width == 1 || gate_width == K, "a_SGK",
             "1 or " + std::to_string(K) + " decays per head", std::to_string(gate_width));
  check.activation("b_SG", args.b_SG, {S, G}, Layout::kStridedRows);
  check.activation("z_SX", args.z_SX, {S, G * V}, Layout::kStridedRows, Presence::kOptional);
  check.statistic("qk_conv_XW", args.qk_conv_XW, {2 * H * K, kAnySize});
  const int64_t W = args.qk_conv_XW.size(1);
  check.that(W >= 2 && W <= 8, "qk_conv_XW", "2 to 8 taps", std::to_string(W));
  check.statistic("v_conv_XW", args.v_conv_XW, {G * V, W});
  check.statistic("A_log_G", args.A_log_G, {G});
  check.statistic("dt_bias_GK", args.dt_bias_GK, {G, gate_width});
  check.statistic("norm_weight_V", args.norm_weight_V, {V});
  check.sequences(args.sequences, S);
  check.that(args.sequences.num() == S, "sequences", std::to_string(S) + " of one row",
             std::to_string(args.sequences.num()));
  check.statistic("qk_history_SWX", args.qk_history_SWX, {S, W - 1, 2 * H * K});
  check.statistic("v_history_SWX", args.v_history_SWX, {S, W - 1, G * V});
  check.activation("y_SX", args.y_SX, {S, G * V});
  return {S, H, G, K, V, W, gate_width, is_low_rank};
}

void compose(const Context& context, const DeltaStep& args, const Sizes& sizes) {
  const auto& [S, H, G, K, V, W, gate_width, is_low_rank] = sizes;
  const Arena::ScratchScope scope(*context.arena);
  const DType activation = args.qk_SX.dtype(), statistic = args.state_SGKV.dtype();
  const auto scratch = [&context](DType dtype, const Shape& shape) {
    return context.arena->scratch(dtype, shape);
  };
  Tensor a_SGK = args.a_SGK, z_SX = args.z_SX;
  if (is_low_rank) {
    const Tensor a_SX = scratch(activation, {S, G * K});
    z_SX = scratch(activation, {S, G * V});
    linear_forward(context, {.x_RD = args.a_low_SP, .weight_XD = args.a_weight_XP, .y_RX = a_SX});
    linear_forward(context, {.x_RD = args.z_low_SP,
                             .weight_XD = args.z_weight_XP,
                             .bias_X = args.z_bias_X,
                             .y_RX = z_SX});
    a_SGK = a_SX.split_last(G, K);
  }
  const Tensor qk_SX = scratch(activation, {S, 2 * H * K});
  const Tensor v_SX = scratch(activation, {S, G * V});
  const Tensor q_SHK = scratch(activation, {S, H, K});
  const Tensor k_SHK = scratch(activation, {S, H, K});
  const Tensor inv_norm_SH = scratch(statistic, {S, H});
  const Tensor g_SGK = scratch(statistic, {S, G, gate_width});
  const Tensor beta_SG = scratch(statistic, {S, G});
  const Tensor o_SGV = scratch(activation, {S, G, V});
  const Tensor inv_rms_SG = scratch(statistic, {S, G});
  short_conv_forward(context, {.x_RX = args.qk_SX,
                               .weight_XW = args.qk_conv_XW,
                               .sequences = args.sequences,
                               .initial_history_SWX = args.qk_history_SWX,
                               .final_history_SWX = args.qk_history_SWX,
                               .y_RX = qk_SX});
  short_conv_forward(context, {.x_RX = args.v_SX,
                               .weight_XW = args.v_conv_XW,
                               .sequences = args.sequences,
                               .initial_history_SWX = args.v_history_SWX,
                               .final_history_SWX = args.v_history_SWX,
                               .y_RX = v_SX});
  l2_norm_forward(context, {.x_RHK = qk_SX.columns(0, H * K).split_last(H, K),
                            .y_RHK = q_SHK,
                            .inv_norm_RH = inv_norm_SH});
  l2_norm_forward(context, {.x_RHK = qk_SX.columns(H * K, 2 * H * K).split_last(H, K),
                            .y_RHK = k_SHK,
                            .inv_norm_RH = inv_norm_SH});
  delta_gate_forward(context, {.a_RGK = a_SGK,
                               .b_RG = args.b_SG,
                               .A_log_G = args.A_log_G,
                               .dt_bias_GK = args.dt_bias_GK,
                               .g_RGK = g_SGK,
                               .beta_RG = beta_SG,
                               .form = args.form,
                               .lower_bound = args.lower_bound,
                               .beta_scale = args.beta_scale});
  gated_delta_rule_forward(context, {.q_RHK = q_SHK,
                                     .k_RHK = k_SHK,
                                     .v_RGV = v_SX.split_last(G, V),
                                     .g_RGK = g_SGK,
                                     .beta_RG = beta_SG,
                                     .sequences = args.sequences,
                                     .initial_state_SGKV = args.state_SGKV,
                                     .final_state_SGKV = args.state_SGKV,
                                     .o_RGV = o_SGV,
                                     .scale = 1 / std::sqrt(static_cast<double>(K))});
  if (z_SX.defined()) {
    gated_rms_norm_forward(context, {.o_RGV = o_SGV,
                                     .gate_RGV = z_SX.split_last(G, V),
                                     .weight_V = args.norm_weight_V,
                                     .y_RGV = args.y_SX.split_last(G, V),
                                     .inv_rms_RG = inv_rms_SG,
                                     .eps = args.norm_eps,
                                     .activation = args.activation});
  } else {
    rms_norm_forward(context, {.x_RD = o_SGV.reshape({S * G, V}),
                               .weight_D = args.norm_weight_V,
                               .y_RD = args.y_SX.reshape({S * G, V}),
                               .inv_rms_R = inv_rms_SG.reshape({S * G}),
                               .eps = args.norm_eps});
  }
}

}  // namespace

void delta_step(const Context& context, const DeltaStep& args) {
  const Sizes sizes = expect_arguments(args);
  if (context.table->delta_step.apply == nullptr) return compose(context, args, sizes);
  call_backend("delta_step", context.table->delta_step.apply, context, args);
}

}  // namespace deltatrain::ops
