#include "ops/rms_norm.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void rms_norm_forward(const Context& context, const RmsNormForward& args) {
  constexpr std::string_view op = "rms_norm_forward";
  const ArgumentCheck check(op, "y_RD", args.y_RD);
  check.activation("y_RD", args.y_RD, {kAnySize, kAnySize});
  const int64_t R = args.y_RD.size(0);
  const int64_t D = args.y_RD.size(1);
  const bool adds = args.residual_RD.defined();
  check.stream("x_RD", args.x_RD, {R, D}, adds ? args.y_RD.dtype() : args.x_RD.dtype(),
               Layout::kStridedRows);
  check.stream("residual_RD", args.residual_RD, {R, D}, args.residual_RD.dtype(),
               Layout::kContiguous, Presence::kOptional);
  check.statistic("weight_D", args.weight_D, {D});
  check.stream("sum_RD", args.sum_RD, {R, D}, args.residual_RD.dtype(), Layout::kContiguous,
               adds ? Presence::kRequired : Presence::kOptional);
  check.that(adds || !args.sum_RD.defined(), "sum_RD", "no tensor without residual_RD",
             to_string(args.sum_RD.shape()));
  check.statistic("inv_rms_R", args.inv_rms_R, {R});
  call_backend(op, context.table->rms_norm.forward, context, args);
}

void rms_norm_backward(const Context& context, const RmsNormBackward& args) {
  constexpr std::string_view op = "rms_norm_backward";
  const ArgumentCheck check(op, "dy_RD", args.dy_RD);
  check.activation("dy_RD", args.dy_RD, {kAnySize, kAnySize});
  const int64_t R = args.dy_RD.size(0);
  const int64_t D = args.dy_RD.size(1);
  const DType stream = args.sum_RD.dtype();
  check.stream("sum_RD", args.sum_RD, {R, D}, stream, Layout::kStridedRows);
  check.statistic("weight_D", args.weight_D, {D});
  check.statistic("inv_rms_R", args.inv_rms_R, {R});
  check.stream("dsum_RD", args.dsum_RD, {R, D}, stream, Layout::kStridedRows, Presence::kOptional);
  check.stream("dx_RD", args.dx_RD, {R, D}, stream, Layout::kStridedRows);
  check.statistic("dweight_D", args.dweight_D, {D});
  check.activation("dx_rounded_RD", args.dx_rounded_RD, {R, D}, Layout::kContiguous,
                   Presence::kOptional);
  call_backend(op, context.table->rms_norm.backward, context, args);
}

}  // namespace deltatrain::ops
