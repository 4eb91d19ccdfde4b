#include "ops/cross_entropy.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void cross_entropy(const Context& context, const CrossEntropy& args) {
  constexpr std::string_view op = "cross_entropy";
  const ArgumentCheck check(op, "logits_RN", args.logits_RN);
  check.activation("logits_RN", args.logits_RN, {kAnySize, kAnySize});
  const int64_t R = args.logits_RN.size(0);
  check.integers("labels_R", args.labels_R, {R});
  check.statistic("loss_R", args.loss_R, {R});
  check.statistic("lse_R", args.lse_R, {R}, Presence::kOptional);
  call_backend(op, context.table->cross_entropy.apply, context, args);
}

}  // namespace deltatrain::ops
