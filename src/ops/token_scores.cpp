#include "ops/token_scores.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void token_scores(const Context& context, const TokenScores& args) {
  constexpr std::string_view op = "token_scores";
  const ArgumentCheck check(op, "logits_RN", args.logits_RN);
  check.activation("logits_RN", args.logits_RN, {kAnySize, kAnySize});
  check.that(args.logits_RN.size(1) > 0, "logits_RN", "at least one column", "none");
  check.integers("rows_T", args.rows_T, {kAnySize});
  const int64_t T = args.rows_T.size(0);
  check.integers("ids_T", args.ids_T, {T});
  check.statistic("log_probability_T", args.log_probability_T, {T});
  check.integers("is_greedy_T", args.is_greedy_T, {T});
  call_backend(op, context.table->token_scores.apply, context, args);
}

}  // namespace deltatrain::ops
