#include "ops/gated_delta_rule.h"

#include <string>

#include "base/error.h"
#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

namespace {

// Inputs that forward and backward share; `Args` is one of the two argument structs.
template <class Args>
void expect_inputs(const ArgumentCheck& check, const Args& args) {
  check.activation("q_RHK", args.q_RHK, {kAnySize, kAnySize, kAnySize});
  const int64_t R = args.q_RHK.size(0);
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  check.activation("k_RHK", args.k_RHK, {R, H, K});
  check.activation("v_RGV", args.v_RGV, {R, kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t G = args.v_RGV.size(1);
  check.that(H > 0 && G % H == 0, "v_RGV", "a multiple of " + std::to_string(H) + " value heads",
             std::to_string(G));
  check.statistic("g_RGK", args.g_RGK, {R, G, kAnySize});
  check.that(args.g_RGK.size(2) == 1 || args.g_RGK.size(2) == K, "g_RGK",
             "1 or " + std::to_string(K) + " decays per head", std::to_string(args.g_RGK.size(2)));
  check.statistic("beta_RG", args.beta_RG, {R, G});
  check.sequences(args.sequences, R);
  check.statistic("initial_state_SGKV", args.initial_state_SGKV,
                  {args.sequences.num(), G, K, args.v_RGV.size(2)}, Presence::kOptional);
}

void expect_saved(std::string_view op, const Tensor& saved, int64_t wanted) {
  expect_shape(op, "saved", saved, {kAnySize});
  expect_dtype(op, "saved", saved, DType::kU8);
  if (saved.num_elements() < wanted) {
    throw ShapeError(error_text(op, "saved", std::to_string(wanted) + " bytes",
                                std::to_string(saved.num_elements())));
  }
}

}  // namespace

void gated_delta_rule_forward(const Context& context, const GatedDeltaRuleForward& args) {
  constexpr std::string_view op = "gated_delta_rule_forward";
  const ArgumentCheck check(op, "q_RHK", args.q_RHK);
  expect_inputs(check, args);
  const int64_t G = args.v_RGV.size(1);
  const int64_t V = args.v_RGV.size(2);
  check.statistic("final_state_SGKV", args.final_state_SGKV,
                  {args.sequences.num(), G, args.q_RHK.size(2), V}, Presence::kOptional);
  check.activation("o_RGV", args.o_RGV, {args.q_RHK.size(0), G, V});
  if (args.saved.defined())
    expect_saved(op, args.saved, gated_delta_rule_saved_bytes(context, args));
  call_backend(op, context.table->gated_delta_rule.forward, context, args);
}

void gated_delta_rule_backward(const Context& context, const GatedDeltaRuleBackward& args) {
  constexpr std::string_view op = "gated_delta_rule_backward";
  const ArgumentCheck check(op, "q_RHK", args.q_RHK);
  expect_inputs(check, args);
  const int64_t R = args.q_RHK.size(0);
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  const int64_t G = args.v_RGV.size(1);
  const int64_t V = args.v_RGV.size(2);
  const int64_t S = args.sequences.num();
  check.activation("do_RGV", args.do_RGV, {R, G, V});
  check.statistic("d_final_state_SGKV", args.d_final_state_SGKV, {S, G, K, V}, Presence::kOptional);
  GatedDeltaRuleForward forward;
  forward.q_RHK = args.q_RHK;
  forward.k_RHK = args.k_RHK;
  forward.v_RGV = args.v_RGV;
  forward.g_RGK = args.g_RGK;
  forward.beta_RG = args.beta_RG;
  forward.sequences = args.sequences;
  forward.initial_state_SGKV = args.initial_state_SGKV;
  forward.o_RGV = args.do_RGV;
  forward.scale = args.scale;
  expect_saved(op, args.saved, gated_delta_rule_saved_bytes(context, forward));
  check.activation("dq_RHK", args.dq_RHK, {R, H, K});
  check.activation("dk_RHK", args.dk_RHK, {R, H, K});
  check.activation("dv_RGV", args.dv_RGV, {R, G, V}, Layout::kStridedRows);
  check.statistic("dg_RGK", args.dg_RGK, {R, G, args.g_RGK.size(2)});
  check.statistic("dbeta_RG", args.dbeta_RG, {R, G});
  check.statistic("d_initial_state_SGKV", args.d_initial_state_SGKV, {S, G, K, V},
                  Presence::kOptional);
  call_backend(op, context.table->gated_delta_rule.backward, context, args);
}

int64_t gated_delta_rule_saved_bytes(const Context& context, const GatedDeltaRuleForward& args) {
  if (context.table->gated_delta_rule.saved_bytes == nullptr) {
    throw_unsupported(context, "gated_delta_rule_saved_bytes");
  }
  return context.table->gated_delta_rule.saved_bytes(context, args);
}

}  // namespace deltatrain::ops
