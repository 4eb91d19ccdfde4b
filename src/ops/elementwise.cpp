#include "ops/elementwise.h"

#include <string>

#include "base/error.h"
#include "ops/check_arguments.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

void add(const Context& context, const Add& args) {
  constexpr std::string_view op = "add";
  const ArgumentCheck check(op, "a_RD", args.a_RD);
  check.activation("a_RD", args.a_RD, {kAnySize, kAnySize}, Layout::kStridedRows);
  const int64_t R = args.a_RD.size(0);
  const int64_t D = args.a_RD.size(1);
  check.activation("b_RD", args.b_RD, {R, D}, Layout::kStridedRows);
  check.activation("y_RD", args.y_RD, {R, D}, Layout::kStridedRows);
  call_backend(op, context.table->elementwise.add, context, args);
}

void convert(const Context& context, const Convert& args) {
  constexpr std::string_view op = "convert";
  const ArgumentCheck check_x(op, "x", args.x);
  const ArgumentCheck check_y(op, "y", args.y);
  expect_contiguous(op, "x", args.x);
  expect_contiguous(op, "y", args.y);
  check_y.that(args.x.num_elements() == args.y.num_elements(), "y",
               std::to_string(args.x.num_elements()) + " elements",
               std::to_string(args.y.num_elements()));
  call_backend(op, context.table->elementwise.convert, context, args);
}

void sum_to(const Context& context, const SumTo& args) {
  constexpr std::string_view op = "sum_to";
  const ArgumentCheck check(op, "x_R", args.x_R);
  check.that(check.activation_dtype() != DType::kBF16, "x_R", "f32 or f64",
             dtype_name(check.activation_dtype()));
  check.activation("x_R", args.x_R, {kAnySize});
  check.that(args.result != nullptr, "result", "an address", "none");
  call_backend(op, context.table->elementwise.sum_to, context, args);
}

void row_argmax(const Context& context, const RowArgmax& args) {
  constexpr std::string_view op = "row_argmax";
  const ArgumentCheck check(op, "x_RN", args.x_RN);
  check.activation("x_RN", args.x_RN, {kAnySize, kAnySize}, Layout::kStridedRows);
  check.that(args.x_RN.size(1) > 0, "x_RN", "at least one column", "none");
  check.integers("index_R", args.index_R, {args.x_RN.size(0)});
  call_backend(op, context.table->elementwise.row_argmax, context, args);
}

void checksum(const Context& context, const Checksum& args) {
  constexpr std::string_view op = "checksum";
  expect_shape(op, "x_X", args.x_X, {kAnySize});
  expect_contiguous(op, "x_X", args.x_X);
  if (args.x_X.num_bytes() % 4 != 0)
    throw ShapeError(error_text(op, "x_X", "a multiple of 4 bytes", std::to_string(args.x_X.num_bytes())));
  if (args.result == nullptr) throw ShapeError(error_text(op, "result", "an address", "none"));
  call_backend(op, context.table->elementwise.checksum, context, args);
}

void copy_rows(const Context& context, const CopyRows& args) {
  constexpr std::string_view op = "copy_rows";
  expect_contiguous(op, "x_X", args.x_X);
  expect_contiguous(op, "y_X", args.y_X);
  expect_dtype(op, "y_X", args.y_X, args.x_X.dtype());
  bool has_rows_alike = args.x_X.rank() == args.y_X.rank() && args.x_X.rank() > 0;
  for (int axis = 1; has_rows_alike && axis < args.x_X.rank(); ++axis)
    has_rows_alike = args.x_X.size(axis) == args.y_X.size(axis);
  if (!has_rows_alike)
    throw ShapeError(
        error_text(op, "y_X", "rows as those of " + describe(args.x_X), describe(args.y_X)));
  for (const auto& [name, tensor] :
       {std::pair{"from_R", &args.from_R}, std::pair{"to_R", &args.to_R}}) {
    expect_shape(op, name, *tensor,
                 {name == std::string_view("from_R") ? kAnySize : args.from_R.size(0)});
    expect_dtype(op, name, *tensor, DType::kI32);
  }
  if (args.counts_R.defined()) {
    expect_shape(op, "counts_R", args.counts_R, {args.from_R.size(0)});
    expect_dtype(op, "counts_R", args.counts_R, DType::kI32);
    if (args.x_X.rank() < 2)
      throw ShapeError(error_text(op, "x_X", "an axis to count along", describe(args.x_X)));
  }
  call_backend(op, context.table->elementwise.copy_rows, context, args);
}

}  // namespace deltatrain::ops
