#include "ops/norm_linear.h"

#include <algorithm>

#include "ops/check_arguments.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/op_table.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace deltatrain::ops {

namespace {

constexpr std::string_view kOp = "norm_linear";

void expect_arguments(const NormLinear& args) {
  const ArgumentCheck check(kOp, "x_RD", args.x_RD);
  check.activation("x_RD", args.x_RD, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.x_RD.size(0), D = args.x_RD.size(1);
  check.activation("residual_RD", args.residual_RD, {R, D}, Layout::kContiguous,
                   Presence::kOptional);
  check.statistic("norm_weight_D", args.norm_weight_D, {D});
  check.activation("sum_RD", args.sum_RD, {R, D}, Layout::kContiguous,
                   args.residual_RD.defined() ? Presence::kRequired : Presence::kOptional);
  check.that(!args.sum_RD.defined() || (args.sum_RD.raw() != args.x_RD.raw() &&
                                        args.sum_RD.raw() != args.residual_RD.raw()),
             "sum_RD", "a place of its own", "that of x or residual");
  check.activation("weight_XD", args.weight_XD, {kAnySize, D});
  const int64_t X = args.weight_XD.size(0);
  const bool is_swiglu = args.activation == NormLinear::Activation::kSwiglu;
  check.that(!is_swiglu || X % 2 == 0, "weight_XD", "an even number of rows", std::to_string(X));
  check.activation("y_RX", args.y_RX, {R, is_swiglu ? X / 2 : X});
  check.that(!args.index_R.defined() || X > 0, "weight_XD", "at least one row", "none");
  check.integers("index_R", args.index_R, {R}, Presence::kOptional);
}

void compose(const Context& context, const NormLinear& args, const Tensor& workspace) {
  const int64_t R = args.x_RD.size(0), D = args.x_RD.size(1), X = args.weight_XD.size(0);
  const Tensor normed_RD(workspace.raw(), args.x_RD.dtype(), {R, D});
  const Tensor inv_rms_R = context.arena->scratch(args.norm_weight_D.dtype(), {R});
  rms_norm_forward(context, {.x_RD = args.x_RD,
                             .residual_RD = args.residual_RD,
                             .weight_D = args.norm_weight_D,
                             .sum_RD = args.sum_RD,
                             .y_RD = normed_RD,
                             .inv_rms_R = inv_rms_R,
                             .eps = args.eps});
  if (args.activation == NormLinear::Activation::kSwiglu) {
    const Tensor gate_up_RX = context.arena->scratch(args.x_RD.dtype(), {R, X});
    linear_forward(context, {.x_RD = normed_RD, .weight_XD = args.weight_XD, .y_RX = gate_up_RX});
    swiglu_forward(context, {.gate_up_RX = gate_up_RX, .y_RF = args.y_RX});
  } else {
    linear_forward(context, {.x_RD = normed_RD, .weight_XD = args.weight_XD, .y_RX = args.y_RX});
  }
  if (args.index_R.defined()) row_argmax(context, {.x_RN = args.y_RX, .index_R = args.index_R});
}

}  // namespace

int64_t norm_linear_workspace_bytes(int64_t num_rows, int64_t width, DType dtype) {
  constexpr int64_t kMinRowBytes = 8192;
  return num_rows * std::max(width * dtype_bytes(dtype), kMinRowBytes);
}

void norm_linear(const Context& context, const NormLinear& args) {
  expect_arguments(args);
  const int64_t R = args.x_RD.size(0), D = args.x_RD.size(1);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor workspace =
      context.arena->scratch(DType::kU8, {norm_linear_workspace_bytes(R, D, args.x_RD.dtype())});
  const auto apply = context.table->norm_linear.apply;
  if (apply != nullptr) {
    OpObserver* const observer = context.table->observer;
    if (observer != nullptr) observer->begin(kOp);
    const bool is_done = apply(context, args, workspace);
    if (observer != nullptr) observer->end(kOp);
    if (is_done) return;
  }
  compose(context, args, workspace);
}

}  // namespace deltatrain::ops
