#include "ops/rotary.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void rotary(const Context& context, const Rotary& args) {
  constexpr std::string_view op = "rotary";
  const ArgumentCheck check(op, "x_RHX", args.x_RHX);
  check.activation("x_RHX", args.x_RHX, {kAnySize, kAnySize, kAnySize}, Layout::kStridedHeads);
  const int64_t R = args.x_RHX.size(0);
  const int64_t X = args.x_RHX.size(2);
  check.that(X % 2 == 0, "x_RHX", "an even number of channels", std::to_string(X));
  check.activation("y_RHX", args.y_RHX, {R, args.x_RHX.size(1), X}, Layout::kStridedHeads);
  check.sequences(args.sequences, R);
  check.integers("start_positions_S", args.start_positions_S, {args.sequences.num()},
                 Presence::kOptional);
  check.that(args.theta > 0, "theta", "a number above 0", std::to_string(args.theta));
  call_backend(op, context.table->rotary.apply, context, args);
}

}  // namespace deltatrain::ops
