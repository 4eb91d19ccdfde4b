#include "ops/short_conv_norm.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

namespace {

// Inputs that forward and backward share; `Args` is one of the two argument structs.
template <class Args>
void expect_arguments(const ArgumentCheck& check, const Args& args) {
  check.activation("x_RX", args.x_RX, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.x_RX.size(1);
  check.statistic("weight_XW", args.weight_XW, {X, kAnySize});
  check.sequences(args.sequences, R);
  check.activation("q_RHK", args.q_RHK, {R, kAnySize, kAnySize});
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  check.that(X == 2 * H * K, "x_RX", std::to_string(2 * H * K) + " channels, q's and k's",
             std::to_string(X));
  check.activation("k_RHK", args.k_RHK, {R, H, K});
  check.statistic("q_inv_norm_RH", args.q_inv_norm_RH, {R, H});
  check.statistic("k_inv_norm_RH", args.k_inv_norm_RH, {R, H});
}

// The half of x's channels that belongs to q (0) or k (1).
Tensor half_of(const Tensor& x_RX, int half, const Tensor& q_RHK) {
  const int64_t H = q_RHK.size(1);
  const int64_t K = q_RHK.size(2);
  return x_RX.columns(half * H * K, (half + 1) * H * K).split_last(H, K);
}

}  // namespace

void short_conv_norm_forward(const Context& context, const ShortConvNormForward& args) {
  constexpr std::string_view op = "short_conv_norm_forward";
  const ArgumentCheck check(op, "x_RX", args.x_RX);
  expect_arguments(check, args);
  if (context.table->short_conv_norm.forward == nullptr) {
    return short_conv_norm_forward_by_parts(context, args);
  }
  call_backend(op, context.table->short_conv_norm.forward, context, args);
}

void short_conv_norm_backward(const Context& context, const ShortConvNormBackward& args) {
  constexpr std::string_view op = "short_conv_norm_backward";
  const ArgumentCheck check(op, "x_RX", args.x_RX);
  expect_arguments(check, args);
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  const int64_t R = args.x_RX.size(0);
  check.activation("dq_RHK", args.dq_RHK, {R, H, K});
  check.activation("dk_RHK", args.dk_RHK, {R, H, K});
  check.activation("dx_RX", args.dx_RX, {R, args.x_RX.size(1)}, Layout::kStridedRows);
  check.statistic("dweight_XW", args.dweight_XW, {args.x_RX.size(1), args.weight_XW.size(1)});
  if (context.table->short_conv_norm.backward == nullptr) {
    return short_conv_norm_backward_by_parts(context, args);
  }
  call_backend(op, context.table->short_conv_norm.backward, context, args);
}

void short_conv_norm_forward_by_parts(const Context& context, const ShortConvNormForward& args) {
  const Arena::ScratchScope scope(*context.arena);
  const Tensor u_RX =
      context.arena->scratch(args.x_RX.dtype(), {args.x_RX.size(0), args.x_RX.size(1)});
  short_conv_forward(context, {.x_RX = args.x_RX,
                               .weight_XW = args.weight_XW,
                               .sequences = args.sequences,
                               .initial_history_SWX = args.initial_history_SWX,
                               .final_history_SWX = args.final_history_SWX,
                               .y_RX = u_RX});
  l2_norm_forward(context, {.x_RHK = half_of(u_RX, 0, args.q_RHK),
                            .y_RHK = args.q_RHK,
                            .inv_norm_RH = args.q_inv_norm_RH,
                            .eps = args.eps});
  l2_norm_forward(context, {.x_RHK = half_of(u_RX, 1, args.q_RHK),
                            .y_RHK = args.k_RHK,
                            .inv_norm_RH = args.k_inv_norm_RH,
                            .eps = args.eps});
}

void short_conv_norm_backward_by_parts(const Context& context, const ShortConvNormBackward& args) {
  const Arena::ScratchScope scope(*context.arena);
  const Tensor du_RX =
      context.arena->scratch(args.x_RX.dtype(), {args.x_RX.size(0), args.x_RX.size(1)});
  l2_norm_backward(context, {.dy_RHK = args.dq_RHK,
                             .y_RHK = args.q_RHK,
                             .inv_norm_RH = args.q_inv_norm_RH,
                             .dx_RHK = half_of(du_RX, 0, args.q_RHK)});
  l2_norm_backward(context, {.dy_RHK = args.dk_RHK,
                             .y_RHK = args.k_RHK,
                             .inv_norm_RH = args.k_inv_norm_RH,
                             .dx_RHK = half_of(du_RX, 1, args.q_RHK)});
  short_conv_backward(context, {.dy_RX = du_RX,
                                .x_RX = args.x_RX,
                                .weight_XW = args.weight_XW,
                                .sequences = args.sequences,
                                .dx_RX = args.dx_RX,
                                .dweight_XW = args.dweight_XW});
}

}  // namespace deltatrain::ops
