#include "ops/rms_norm.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void rms_norm_forward(const Context& context, const RmsNormForward& args) {
  constexpr std::string_view op = "rms_norm_forward";
  const ArgumentCheck check(op, "x_RD", args.x_RD);
  check.activation("x_RD", args.x_RD, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.x_RD.size(0);
  const int64_t D = args.x_RD.size(1);
  check.activation("residual_RD", args.residual_RD, {R, D}, Layout::kContiguous,
                   Presence::kOptional);
  check.statistic("weight_D", args.weight_D, {D});
  check.activation("sum_RD", args.sum_RD, {R, D}, Layout::kContiguous,
                   args.residual_RD.defined() ? Presence::kRequired : Presence::kOptional);
  check.that(args.residual_RD.defined() || !args.sum_RD.defined(), "sum_RD",
             "no tensor without residual_RD", to_string(args.sum_RD.shape()));
  check.activation("y_RD", args.y_RD, {R, D});
  check.statistic("inv_rms_R", args.inv_rms_R, {R});
  call_backend(op, context.table->rms_norm.forward, context, args);
}

void rms_norm_backward(const Context& context, const RmsNormBackward& args) {
  constexpr std::string_view op = "rms_norm_backward";
  const ArgumentCheck check(op, "dy_RD", args.dy_RD);
  check.activation("dy_RD", args.dy_RD, {kAnySize, kAnySize});
  const int64_t R = args.dy_RD.size(0);
  const int64_t D = args.dy_RD.size(1);
  check.activation("sum_RD", args.sum_RD, {R, D}, Layout::kStridedRows);
  check.statistic("weight_D", args.weight_D, {D});
  check.statistic("inv_rms_R", args.inv_rms_R, {R});
  check.activation("dsum_RD", args.dsum_RD, {R, D}, Layout::kStridedRows, Presence::kOptional);
  check.activation("dx_RD", args.dx_RD, {R, D}, Layout::kStridedRows);
  check.statistic("dweight_D", args.dweight_D, {D});
  call_backend(op, context.table->rms_norm.backward, context, args);
}

}  // namespace deltatrain::ops
