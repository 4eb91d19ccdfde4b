#include "ops/linear_swiglu.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/linear.h"
#include "ops/op_table.h"
#include "ops/swiglu.h"

namespace deltatrain::ops {

namespace {

// Whether the backend has done it.
template <class Args>
bool is_done_by(bool (*kernel)(const Context&, const Args&), std::string_view op,
                const Context& context, const Args& args) {
  if (kernel == nullptr) return false;
  OpObserver* const observer = context.table->observer;
  if (observer != nullptr) observer->begin(op);
  const bool is_done = kernel(context, args);
  if (observer != nullptr) observer->end(op);
  return is_done;
}

}  // namespace

void linear_swiglu_forward(const Context& context, const LinearSwigluForward& args) {
  constexpr std::string_view op = "linear_swiglu_forward";
  const ArgumentCheck check(op, "x_RD", args.x_RD);
  check.activation("x_RD", args.x_RD, {kAnySize, kAnySize});
  const int64_t R = args.x_RD.size(0);
  check.activation("weight_XD", args.weight_XD, {kAnySize, args.x_RD.size(1)});
  const int64_t X = args.weight_XD.size(0);
  check.that(X % 2 == 0, "weight_XD", "an even number of rows", std::to_string(X));
  check.activation("gate_up_RX", args.gate_up_RX, {R, X});
  check.activation("y_RF", args.y_RF, {R, X / 2});
  if (is_done_by(context.table->linear_swiglu.forward, op, context, args)) return;
  linear_forward(context, {.x_RD = args.x_RD,
                           .weight_XD = args.weight_XD,
                           .bias_X = Tensor(),
                           .y_RX = args.gate_up_RX});
  swiglu_forward(context, {.gate_up_RX = args.gate_up_RX, .y_RF = args.y_RF});
}

void linear_swiglu_backward(const Context& context, const LinearSwigluBackward& args) {
  constexpr std::string_view op = "linear_swiglu_backward";
  const ArgumentCheck check(op, "dz_RD", args.dz_RD);
  check.activation("dz_RD", args.dz_RD, {kAnySize, kAnySize});
  const int64_t R = args.dz_RD.size(0);
  check.activation("weight_DF", args.weight_DF, {args.dz_RD.size(1), kAnySize});
  const int64_t F = args.weight_DF.size(1);
  check.activation("gate_up_RX", args.gate_up_RX, {R, 2 * F});
  check.activation("dgate_up_RX", args.dgate_up_RX, {R, 2 * F});
  if (is_done_by(context.table->linear_swiglu.backward, op, context, args)) return;
  const Arena::ScratchScope scope(*context.arena);
  const Tensor dy_RF = context.arena->scratch(args.dz_RD.dtype(), {R, F});
  LinearBackward product;
  product.dy_RX = args.dz_RD;
  product.weight_XD = args.weight_DF;
  product.dx_RD = dy_RF;
  linear_backward(context, product);
  swiglu_backward(context, {.dy_RF = dy_RF,
                            .gate_up_RX = args.gate_up_RX,
                            .dgate_up_RX = args.dgate_up_RX,
                            .y_RF = Tensor()});
}

}  // namespace deltatrain::ops
