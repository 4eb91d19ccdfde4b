#include "ops/linear.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void linear_forward(const Context& context, const LinearForward& args) {
  constexpr std::string_view op = "linear_forward";
  const ArgumentCheck check(op, "x_RD", args.x_RD);
  check.activation("x_RD", args.x_RD, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.x_RD.size(0);
  const int64_t D = args.x_RD.size(1);
  check.activation("weight_XD", args.weight_XD, {kAnySize, D});
  const int64_t X = args.weight_XD.size(0);
  check.statistic("bias_X", args.bias_X, {X}, Presence::kOptional);
  expect_shape(op, "y_RX", args.y_RX, {R, X});
  expect_packed_rows(op, "y_RX", args.y_RX);
  check.that(args.y_RX.dtype() == check.activation_dtype() ||
                 args.y_RX.dtype() == check.statistics_dtype(),
             "y_RX", dtype_name(check.activation_dtype()), dtype_name(args.y_RX.dtype()));
  call_backend(op, context.table->linear.forward, context, args);
}

void linear_backward(const Context& context, const LinearBackward& args) {
  constexpr std::string_view op = "linear_backward";
  const ArgumentCheck check(op, "dy_RX", args.dy_RX);
  check.activation("dy_RX", args.dy_RX, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.dy_RX.size(0);
  const int64_t X = args.dy_RX.size(1);
  if (args.dx_RD.defined()) {
    check.activation("weight_XD", args.weight_XD, {X, kAnySize});
    check.activation("dx_RD", args.dx_RD, {R, args.weight_XD.size(1)}, Layout::kStridedRows);
  }
  if (args.dweight_XD.defined()) {
    check.activation("x_RD", args.x_RD, {R, kAnySize}, Layout::kStridedRows);
    check.statistic("dweight_XD", args.dweight_XD, {X, args.x_RD.size(1)});
  }
  check.statistic("dbias_X", args.dbias_X, {X}, Presence::kOptional);
  call_backend(op, context.table->linear.backward, context, args);
}

}  // namespace deltatrain::ops
