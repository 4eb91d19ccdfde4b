#include "ops/mla_key.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void mla_key_forward(const Context& context, const MlaKeyForward& args) {
  constexpr std::string_view op = "mla_key_forward";
  const ArgumentCheck check(op, "k_nope_RHX", args.k_nope_RHX);
  check.activation("k_nope_RHX", args.k_nope_RHX, {kAnySize, kAnySize, kAnySize},
                   Layout::kStridedHeads);
  const int64_t R = args.k_nope_RHX.size(0);
  check.activation("k_rope_RX", args.k_rope_RX, {R, kAnySize}, Layout::kStridedRows);
  check.activation("k_RHK", args.k_RHK,
                   {R, args.k_nope_RHX.size(1), args.k_nope_RHX.size(2) + args.k_rope_RX.size(1)});
  call_backend(op, context.table->mla_key.forward, context, args);
}

void mla_key_backward(const Context& context, const MlaKeyBackward& args) {
  constexpr std::string_view op = "mla_key_backward";
  const ArgumentCheck check(op, "dk_nope_RHX", args.dk_nope_RHX);
  check.activation("dk_nope_RHX", args.dk_nope_RHX, {kAnySize, kAnySize, kAnySize},
                   Layout::kStridedHeads);
  const int64_t R = args.dk_nope_RHX.size(0);
  check.activation("dk_rope_RX", args.dk_rope_RX, {R, kAnySize}, Layout::kStridedRows);
  check.activation(
      "dk_RHK", args.dk_RHK,
      {R, args.dk_nope_RHX.size(1), args.dk_nope_RHX.size(2) + args.dk_rope_RX.size(1)});
  call_backend(op, context.table->mla_key.backward, context, args);
}

}  // namespace deltatrain::ops
