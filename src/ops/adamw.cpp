#include "ops/adamw.h"

#include <string>

#include "base/check.h"
#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

namespace {
void expect_scalars(std::string_view op, const StepScalars* scalars) {
  if (scalars == nullptr) throw ShapeError(error_text(op, "scalars", "an address", "none"));
}

void expect_master_dtype(const ArgumentCheck& check, std::string_view name) {
  check.that(check.activation_dtype() != DType::kBF16, name, "f32 or f64",
             dtype_name(check.activation_dtype()));
}
}  // namespace

void sum_of_squares(const Context& context, const SumOfSquares& args) {
  constexpr std::string_view op = "sum_of_squares";
  const ArgumentCheck check(op, "gradient_X", args.gradient_X);
  expect_master_dtype(check, "gradient_X");
  check.activation("gradient_X", args.gradient_X, {kAnySize});
  expect_scalars(op, args.scalars);
  call_backend(op, context.table->adamw.sum_of_squares, context, args);
}

void finish_gradient_norm(const Context& context, const FinishGradientNorm& args) {
  constexpr std::string_view op = "finish_gradient_norm";
  expect_scalars(op, args.scalars);
  call_backend(op, context.table->adamw.finish_gradient_norm, context, args);
}

void adamw(const Context& context, const AdamW& args) {
  constexpr std::string_view op = "adamw";
  const ArgumentCheck check(op, "parameter_X", args.parameter_X);
  expect_master_dtype(check, "parameter_X");
  check.activation("parameter_X", args.parameter_X, {kAnySize});
  const int64_t X = args.parameter_X.size(0);
  expect_shape(op, "compute_X", args.compute_X, {X}, Presence::kOptional);
  if (args.compute_X.defined()) expect_dtype(op, "compute_X", args.compute_X, DType::kBF16);
  check.activation("gradient_X", args.gradient_X, {X});
  check.activation("m_X", args.m_X, {X});
  check.activation("v_X", args.v_X, {X});
  expect_shape(op, "decays_X", args.decays_X, {divide_up(X, kDecayBlock)});
  expect_dtype(op, "decays_X", args.decays_X, DType::kU8);
  expect_scalars(op, args.scalars);
  check.that(args.beta1 >= 0 && args.beta1 < 1, "beta1", "a number in [0, 1)",
             std::to_string(args.beta1));
  check.that(args.beta2 >= 0 && args.beta2 < 1, "beta2", "a number in [0, 1)",
             std::to_string(args.beta2));
  call_backend(op, context.table->adamw.adamw, context, args);
}

}  // namespace deltatrain::ops
