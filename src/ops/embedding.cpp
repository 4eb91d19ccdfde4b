#include "ops/embedding.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  constexpr std::string_view op = "embedding_forward";
  const ArgumentCheck check(op, "weight_ND", args.weight_ND);
  check.activation("weight_ND", args.weight_ND, {kAnySize, kAnySize});
  check.integers("ids_R", args.ids_R, {kAnySize});
  check.stream("y_RD", args.y_RD, {args.ids_R.size(0), args.weight_ND.size(1)}, args.y_RD.dtype());
  call_backend(op, context.table->embedding.forward, context, args);
}

void embedding_backward(const Context& context, const EmbeddingBackward& args) {
  constexpr std::string_view op = "embedding_backward";
  const ArgumentCheck check(op, "dy_RD", args.dy_RD);
  check.activation("dy_RD", args.dy_RD, {kAnySize, kAnySize});
  check.integers("ids_R", args.ids_R, {args.dy_RD.size(0)});
  check.statistic("dweight_ND", args.dweight_ND, {kAnySize, args.dy_RD.size(1)});
  call_backend(op, context.table->embedding.backward, context, args);
}

}  // namespace deltatrain::ops
