#include "ops/causal_attention.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void causal_attention_forward(const Context& context, const CausalAttentionForward& args) {
  constexpr std::string_view op = "causal_attention_forward";
  const ArgumentCheck check(op, "q_RHK", args.q_RHK);
  check.activation("q_RHK", args.q_RHK, {kAnySize, kAnySize, kAnySize});
  const int64_t R = args.q_RHK.size(0);
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  check.activation("k_RHK", args.k_RHK, {R, H, K});
  check.activation("v_RHV", args.v_RHV, {R, H, kAnySize}, Layout::kStridedHeads);
  const int64_t V = args.v_RHV.size(2);
  check.sequences(args.sequences, R);
  const int64_t S = args.sequences.num();
  check.activation("o_RHV", args.o_RHV, {R, H, V});
  check.statistic("lse_RH", args.lse_RH, {R, H}, Presence::kOptional);
  check.activation("k_cache_SXHK", args.k_cache_SXHK, {S, kAnySize, H, K}, Layout::kContiguous,
                   Presence::kOptional);
  if (args.k_cache_SXHK.defined()) {
    check.activation("v_cache_SXHV", args.v_cache_SXHV, {S, args.k_cache_SXHK.size(1), H, V});
    check.integers("cache_lengths_S", args.cache_lengths_S, {S});
  }
  call_backend(op, context.table->causal_attention.forward, context, args);
}

void causal_attention_backward(const Context& context, const CausalAttentionBackward& args) {
  constexpr std::string_view op = "causal_attention_backward";
  const ArgumentCheck check(op, "q_RHK", args.q_RHK);
  check.activation("q_RHK", args.q_RHK, {kAnySize, kAnySize, kAnySize});
  const int64_t R = args.q_RHK.size(0);
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  check.activation("k_RHK", args.k_RHK, {R, H, K});
  check.activation("v_RHV", args.v_RHV, {R, H, kAnySize}, Layout::kStridedHeads);
  const int64_t V = args.v_RHV.size(2);
  check.activation("do_RHV", args.do_RHV, {R, H, V});
  check.activation("o_RHV", args.o_RHV, {R, H, V});
  check.statistic("lse_RH", args.lse_RH, {R, H});
  check.sequences(args.sequences, R);
  check.activation("dq_RHK", args.dq_RHK, {R, H, K});
  check.activation("dk_RHK", args.dk_RHK, {R, H, K});
  check.activation("dv_RHV", args.dv_RHV, {R, H, V}, Layout::kStridedHeads);
  call_backend(op, context.table->causal_attention.backward, context, args);
}

}  // namespace deltatrain::ops
