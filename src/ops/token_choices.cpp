#include "ops/token_choices.h"

#include <string>

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void token_choices(const Context& context, const TokenChoices& args) {
  constexpr std::string_view op = "token_choices";
  const ArgumentCheck check(op, "logits_RN", args.logits_RN);
  check.activation("logits_RN", args.logits_RN, {kAnySize, kAnySize});
  const int64_t R = args.logits_RN.size(0), N = args.logits_RN.size(1);
  check.that(N > 0 && N <= kMaxChoiceColumns, "logits_RN",
             "from 1 to " + std::to_string(kMaxChoiceColumns) + " columns", std::to_string(N));
  check.integers("given_R", args.given_R, {R});
  const auto settings = [&](std::string_view name, const Tensor& tensor) {
    expect_shape(op, name, tensor, {R});
    expect_dtype(op, name, tensor, DType::kF64);
    expect_contiguous(op, name, tensor);
  };
  settings("temperature_R", args.temperature_R);
  settings("top_p_R", args.top_p_R);
  settings("uniform_R", args.uniform_R);
  check.integers("top_k_R", args.top_k_R, {R});
  check.integers("num_top_R", args.num_top_R, {R});
  check.integers("id_R", args.id_R, {R});
  check.statistic("logit_R", args.logit_R, {R});
  check.statistic("lse_R", args.lse_R, {R});
  check.integers("top_ids_RX", args.top_ids_RX, {R, kAnySize});
  const int64_t X = args.top_ids_RX.size(1);
  check.that(X <= kMaxTopTokens, "top_ids_RX",
             "at most " + std::to_string(kMaxTopTokens) + " columns", std::to_string(X));
  check.statistic("top_logits_RX", args.top_logits_RX, {R, X});
  call_backend(op, context.table->token_choices.apply, context, args);
}

}  // namespace deltatrain::ops
