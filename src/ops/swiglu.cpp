#include "ops/swiglu.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void swiglu_forward(const Context& context, const SwigluForward& args) {
  constexpr std::string_view op = "swiglu_forward";
  const ArgumentCheck check(op, "gate_up_RX", args.gate_up_RX);
  check.activation("gate_up_RX", args.gate_up_RX, {kAnySize, kAnySize});
  const int64_t X = args.gate_up_RX.size(1);
  check.that(X % 2 == 0, "gate_up_RX", "an even number of channels", std::to_string(X));
  check.activation("y_RF", args.y_RF, {args.gate_up_RX.size(0), X / 2});
  call_backend(op, context.table->swiglu.forward, context, args);
}

void swiglu_backward(const Context& context, const SwigluBackward& args) {
  constexpr std::string_view op = "swiglu_backward";
  const ArgumentCheck check(op, "dy_RF", args.dy_RF);
  check.activation("dy_RF", args.dy_RF, {kAnySize, kAnySize});
  const int64_t R = args.dy_RF.size(0);
  const int64_t F = args.dy_RF.size(1);
  check.activation("gate_up_RX", args.gate_up_RX, {R, 2 * F});
  check.activation("dgate_up_RX", args.dgate_up_RX, {R, 2 * F});
  check.activation("y_RF", args.y_RF, {R, F}, Layout::kContiguous, Presence::kOptional);
  call_backend(op, context.table->swiglu.backward, context, args);
}

}  // namespace deltatrain::ops
