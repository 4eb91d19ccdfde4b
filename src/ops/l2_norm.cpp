#include "ops/l2_norm.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void l2_norm_forward(const Context& context, const L2NormForward& args) {
  constexpr std::string_view op = "l2_norm_forward";
  const ArgumentCheck check(op, "x_RHK", args.x_RHK);
  check.activation("x_RHK", args.x_RHK, {kAnySize, kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.x_RHK.size(0);
  const int64_t H = args.x_RHK.size(1);
  check.activation("y_RHK", args.y_RHK, {R, H, args.x_RHK.size(2)});
  check.statistic("inv_norm_RH", args.inv_norm_RH, {R, H});
  call_backend(op, context.table->l2_norm.forward, context, args);
}

void l2_norm_backward(const Context& context, const L2NormBackward& args) {
  constexpr std::string_view op = "l2_norm_backward";
  const ArgumentCheck check(op, "dy_RHK", args.dy_RHK);
  check.activation("dy_RHK", args.dy_RHK, {kAnySize, kAnySize, kAnySize});
  const int64_t R = args.dy_RHK.size(0);
  const int64_t H = args.dy_RHK.size(1);
  const int64_t K = args.dy_RHK.size(2);
  check.activation("y_RHK", args.y_RHK, {R, H, K});
  check.statistic("inv_norm_RH", args.inv_norm_RH, {R, H});
  check.activation("dx_RHK", args.dx_RHK, {R, H, K}, Layout::kStridedRows);
  call_backend(op, context.table->l2_norm.backward, context, args);
}

}  // namespace deltatrain::ops
