#include "backend/reference/reference_tables.h"
#include "ops/reference/delta_gate.h"
#include "ops/reference/gated_delta_rule.h"
#include "ops/reference/l2_norm.h"
#include "ops/reference/short_conv.h"
#include "ops/reference/short_conv_norm.h"

namespace deltatrain::backend {

namespace {

namespace loops = ops::reference;

template <class T>
using In = View<const T>;
template <class T>
using Out = View<T>;

void short_conv_forward(const Context&, const ops::ShortConvForward& a) {
  with_scalar_of("short_conv_forward", a.x_RX, [&](auto scalar) {
    using T = decltype(scalar);
    loops::short_conv_forward<T>(In<T>(a.x_RX), In<T>(a.weight_XW), a.sequences,
                                 In<T>(a.initial_history_SWX), Out<T>(a.final_history_SWX),
                                 Out<T>(a.y_RX));
  });
}

void short_conv_backward(const Context&, const ops::ShortConvBackward& a) {
  with_scalar_of("short_conv_backward", a.dy_RX, [&](auto scalar) {
    using T = decltype(scalar);
    loops::short_conv_backward<T>(In<T>(a.dy_RX), In<T>(a.x_RX), In<T>(a.weight_XW), a.sequences,
                                  Out<T>(a.dx_RX), Out<T>(a.dweight_XW));
  });
}

void short_conv_norm_forward(const Context&, const ops::ShortConvNormForward& a) {
  with_scalar_of("short_conv_norm_forward", a.x_RX, [&](auto scalar) {
    using T = decltype(scalar);
    loops::short_conv_norm_forward<T>(In<T>(a.x_RX), In<T>(a.weight_XW), a.sequences,
                                      In<T>(a.initial_history_SWX), Out<T>(a.final_history_SWX),
                                      a.eps, Out<T>(a.q_RHK), Out<T>(a.k_RHK),
                                      Out<T>(a.q_inv_norm_RH), Out<T>(a.k_inv_norm_RH));
  });
}

void short_conv_norm_backward(const Context&, const ops::ShortConvNormBackward& a) {
  with_scalar_of("short_conv_norm_backward", a.x_RX, [&](auto scalar) {
    using T = decltype(scalar);
    loops::short_conv_norm_backward<T>(In<T>(a.dq_RHK), In<T>(a.dk_RHK), In<T>(a.q_RHK),
                                       In<T>(a.k_RHK), In<T>(a.q_inv_norm_RH),
                                       In<T>(a.k_inv_norm_RH), In<T>(a.x_RX), In<T>(a.weight_XW),
                                       a.sequences, Out<T>(a.dx_RX), Out<T>(a.dweight_XW));
  });
}

void l2_norm_forward(const Context&, const ops::L2NormForward& a) {
  with_scalar_of("l2_norm_forward", a.x_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::l2_norm_forward<T>(In<T>(a.x_RHK), a.eps, Out<T>(a.y_RHK), Out<T>(a.inv_norm_RH));
  });
}

void l2_norm_backward(const Context&, const ops::L2NormBackward& a) {
  with_scalar_of("l2_norm_backward", a.dy_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::l2_norm_backward<T>(In<T>(a.dy_RHK), In<T>(a.y_RHK), In<T>(a.inv_norm_RH),
                               Out<T>(a.dx_RHK));
  });
}

void delta_gate_forward(const Context&, const ops::DeltaGateForward& a) {
  with_scalar_of("delta_gate_forward", a.a_RGK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::delta_gate_forward<T>(In<T>(a.a_RGK), In<T>(a.b_RG), In<T>(a.A_log_G),
                                 In<T>(a.dt_bias_GK), a.form, a.lower_bound, a.beta_scale,
                                 Out<T>(a.g_RGK), Out<T>(a.beta_RG));
  });
}

void delta_gate_backward(const Context&, const ops::DeltaGateBackward& a) {
  with_scalar_of("delta_gate_backward", a.a_RGK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::delta_gate_backward<T>(In<T>(a.dg_RGK), In<T>(a.dbeta_RG), In<T>(a.a_RGK), In<T>(a.b_RG),
                                  In<T>(a.A_log_G), In<T>(a.dt_bias_GK), a.form, a.lower_bound,
                                  a.beta_scale, Out<T>(a.da_RGK), Out<T>(a.db_RG),
                                  Out<T>(a.dA_log_G), Out<T>(a.ddt_bias_GK));
  });
}

template <class T, class Args>
loops::DeltaInputs<T> delta_inputs(const Args& a) {
  return {In<T>(a.q_RHK),
          In<T>(a.k_RHK),
          In<T>(a.v_RGV),
          In<T>(a.g_RGK),
          In<T>(a.beta_RG),
          a.sequences,
          In<T>(a.initial_state_SGKV),
          a.scale};
}

void gated_delta_rule_forward(const Context&, const ops::GatedDeltaRuleForward& a) {
  with_scalar_of("gated_delta_rule_forward", a.q_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::gated_delta_rule_forward<T>(delta_inputs<T>(a), Out<T>(a.o_RGV),
                                       Out<T>(a.final_state_SGKV));
  });
}

void gated_delta_rule_backward(const Context&, const ops::GatedDeltaRuleBackward& a) {
  with_scalar_of("gated_delta_rule_backward", a.q_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::gated_delta_rule_backward<T>(
        delta_inputs<T>(a), In<T>(a.do_RGV), In<T>(a.d_final_state_SGKV),
        {Out<T>(a.dq_RHK), Out<T>(a.dk_RHK), Out<T>(a.dv_RGV), Out<T>(a.dg_RGK), Out<T>(a.dbeta_RG),
         Out<T>(a.d_initial_state_SGKV)});
  });
}

// Backward runs the recurrence once more instead.
int64_t gated_delta_rule_saved_bytes(const Context&, const ops::GatedDeltaRuleForward&) {
  return 0;
}

}  // namespace

void fill_reference_delta_ops(ops::OpTable& table) {
  table.short_conv = {short_conv_forward, short_conv_backward};
  table.short_conv_norm = {short_conv_norm_forward, short_conv_norm_backward};
  table.l2_norm = {l2_norm_forward, l2_norm_backward};
  table.delta_gate = {delta_gate_forward, delta_gate_backward};
  table.gated_delta_rule = {gated_delta_rule_forward, gated_delta_rule_backward,
                            gated_delta_rule_saved_bytes};
}

}  // namespace deltatrain::backend
