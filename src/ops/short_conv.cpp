#include "ops/short_conv.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

namespace {
constexpr int64_t kMaxTaps = 8;

int64_t expect_taps(const ArgumentCheck& check, const Tensor& weight_XW, int64_t X) {
  check.statistic("weight_XW", weight_XW, {X, kAnySize});
  const int64_t W = weight_XW.size(1);
  check.that(W >= 1 && W <= kMaxTaps, "weight_XW", "1 to 8 taps", std::to_string(W));
  return W;
}
}  // namespace

void short_conv_forward(const Context& context, const ShortConvForward& args) {
  constexpr std::string_view op = "short_conv_forward";
  const ArgumentCheck check(op, "x_RX", args.x_RX);
  check.activation("x_RX", args.x_RX, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.x_RX.size(1);
  const int64_t W = expect_taps(check, args.weight_XW, X);
  check.sequences(args.sequences, R);
  const int64_t S = args.sequences.num();
  check.statistic("initial_history_SWX", args.initial_history_SWX, {S, W - 1, X},
                  Presence::kOptional);
  check.statistic("final_history_SWX", args.final_history_SWX, {S, W - 1, X}, Presence::kOptional);
  check.activation("y_RX", args.y_RX, {R, X}, Layout::kStridedRows);
  check.that(args.y_RX.raw() != args.x_RX.raw(), "y_RX", "other memory than x_RX", "the same");
  call_backend(op, context.table->short_conv.forward, context, args);
}

void short_conv_backward(const Context& context, const ShortConvBackward& args) {
  constexpr std::string_view op = "short_conv_backward";
  const ArgumentCheck check(op, "dy_RX", args.dy_RX);
  check.activation("dy_RX", args.dy_RX, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.dy_RX.size(0);
  const int64_t X = args.dy_RX.size(1);
  check.activation("x_RX", args.x_RX, {R, X}, Layout::kStridedRows);
  const int64_t W = expect_taps(check, args.weight_XW, X);
  check.sequences(args.sequences, R);
  check.activation("dx_RX", args.dx_RX, {R, X}, Layout::kStridedRows);
  check.that(args.dx_RX.raw() != args.dy_RX.raw(), "dx_RX", "other memory than dy_RX", "the same");
  check.statistic("dweight_XW", args.dweight_XW, {X, W});
  call_backend(op, context.table->short_conv.backward, context, args);
}

}  // namespace deltatrain::ops
