#include "ops/delta_gate.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

namespace {
void expect_form(const ArgumentCheck& check, DecayForm form, double lower_bound) {
  check.that(form == DecayForm::kSoftplus || lower_bound < 0, "lower_bound", "a number below 0",
             std::to_string(lower_bound));
}
}  // namespace

void delta_gate_forward(const Context& context, const DeltaGateForward& args) {
  constexpr std::string_view op = "delta_gate_forward";
  const ArgumentCheck check(op, "a_RGK", args.a_RGK);
  check.activation("a_RGK", args.a_RGK, {kAnySize, kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.a_RGK.size(0);
  const int64_t G = args.a_RGK.size(1);
  const int64_t K = args.a_RGK.size(2);
  check.activation("b_RG", args.b_RG, {R, G}, Layout::kStridedRows);
  check.statistic("A_log_G", args.A_log_G, {G});
  check.statistic("dt_bias_GK", args.dt_bias_GK, {G, K});
  check.statistic("g_RGK", args.g_RGK, {R, G, K});
  check.statistic("beta_RG", args.beta_RG, {R, G});
  expect_form(check, args.form, args.lower_bound);
  call_backend(op, context.table->delta_gate.forward, context, args);
}

void delta_gate_backward(const Context& context, const DeltaGateBackward& args) {
  constexpr std::string_view op = "delta_gate_backward";
  const ArgumentCheck check(op, "a_RGK", args.a_RGK);
  check.activation("a_RGK", args.a_RGK, {kAnySize, kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.a_RGK.size(0);
  const int64_t G = args.a_RGK.size(1);
  const int64_t K = args.a_RGK.size(2);
  check.statistic("dg_RGK", args.dg_RGK, {R, G, K});
  check.statistic("dbeta_RG", args.dbeta_RG, {R, G});
  check.activation("b_RG", args.b_RG, {R, G}, Layout::kStridedRows);
  check.statistic("A_log_G", args.A_log_G, {G});
  check.statistic("dt_bias_GK", args.dt_bias_GK, {G, K});
  check.activation("da_RGK", args.da_RGK, {R, G, K}, Layout::kStridedRows);
  check.activation("db_RG", args.db_RG, {R, G}, Layout::kStridedRows);
  check.statistic("dA_log_G", args.dA_log_G, {G});
  check.statistic("ddt_bias_GK", args.ddt_bias_GK, {G, K});
  expect_form(check, args.form, args.lower_bound);
  call_backend(op, context.table->delta_gate.backward, context, args);
}

}  // namespace deltatrain::ops
