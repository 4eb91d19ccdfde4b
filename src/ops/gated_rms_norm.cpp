#include "ops/gated_rms_norm.h"

#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void gated_rms_norm_forward(const Context& context, const GatedRmsNormForward& args) {
  constexpr std::string_view op = "gated_rms_norm_forward";
  const ArgumentCheck check(op, "o_RGV", args.o_RGV);
  check.activation("o_RGV", args.o_RGV, {kAnySize, kAnySize, kAnySize});
  const int64_t R = args.o_RGV.size(0);
  const int64_t G = args.o_RGV.size(1);
  const int64_t V = args.o_RGV.size(2);
  check.activation("gate_RGV", args.gate_RGV, {R, G, V}, Layout::kStridedRows);
  check.statistic("weight_V", args.weight_V, {V});
  check.activation("y_RGV", args.y_RGV, {R, G, V});
  check.statistic("inv_rms_RG", args.inv_rms_RG, {R, G});
  call_backend(op, context.table->gated_rms_norm.forward, context, args);
}

void gated_rms_norm_backward(const Context& context, const GatedRmsNormBackward& args) {
  constexpr std::string_view op = "gated_rms_norm_backward";
  const ArgumentCheck check(op, "dy_RGV", args.dy_RGV);
  check.activation("dy_RGV", args.dy_RGV, {kAnySize, kAnySize, kAnySize});
  const int64_t R = args.dy_RGV.size(0);
  const int64_t G = args.dy_RGV.size(1);
  const int64_t V = args.dy_RGV.size(2);
  check.activation("o_RGV", args.o_RGV, {R, G, V});
  check.activation("gate_RGV", args.gate_RGV, {R, G, V}, Layout::kStridedRows);
  check.statistic("weight_V", args.weight_V, {V});
  check.statistic("inv_rms_RG", args.inv_rms_RG, {R, G});
  check.activation("do_RGV", args.do_RGV, {R, G, V});
  check.activation("dgate_RGV", args.dgate_RGV, {R, G, V}, Layout::kStridedRows);
  check.statistic("dweight_V", args.dweight_V, {V});
  call_backend(op, context.table->gated_rms_norm.backward, context, args);
}

}  // namespace deltatrain::ops
