#include "ops/check_arguments.h"

#include <string>

#include "base/error.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

namespace {

bool matches(const Shape& shape, std::initializer_list<int64_t> wanted) {
  if (shape.rank() != static_cast<int>(wanted.size())) return false;
  int axis = 0;
  for (const int64_t size : wanted) {
    if (shape[axis] < 0 || (size != kAnySize && shape[axis] != size)) return false;
    ++axis;
  }
  return true;
}

std::string shape_text(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += size == kAnySize ? "any" : std::to_string(size);
  }
  return text + "]";
}

// "strides [128, 1]"
std::string strides_text(const Tensor& tensor) {
  std::string text = "[";
  for (int axis = 0; axis < tensor.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(tensor.stride(axis));
  }
  return to_string(tensor.shape()) + " with strides " + text + "]";
}

}  // namespace

void expect_shape(std::string_view op, std::string_view name, const Tensor& tensor,
                  std::initializer_list<int64_t> shape, Presence presence) {
  if (!tensor.defined()) {
    if (presence == Presence::kOptional) return;
    throw ShapeError(error_text(op, name, shape_text(shape), "no tensor"));
  }
  if (!matches(tensor.shape(), shape)) {
    throw ShapeError(error_text(op, name, shape_text(shape), to_string(tensor.shape())));
  }
}

void expect_dtype(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype) {
  if (tensor.dtype() != dtype) {
    throw ShapeError(error_text(op, name, dtype_name(dtype), dtype_name(tensor.dtype())));
  }
}

void expect_contiguous(std::string_view op, std::string_view name, const Tensor& tensor) {
  if (!tensor.is_contiguous()) {
    throw ShapeError(error_text(op, name, "a contiguous tensor", strides_text(tensor)));
  }
}

void expect_packed_rows(std::string_view op, std::string_view name, const Tensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.rank() - 1; axis >= 1; --axis) {
    if (tensor.size(axis) != 1 && tensor.stride(axis) != stride) {
      throw ShapeError(error_text(op, name, "packed rows", strides_text(tensor)));
    }
    stride *= tensor.size(axis);
  }
}

void expect_sequences(std::string_view op, const Sequences& sequences, int64_t num_rows) {
  if (sequences.offsets.size() < 2) {
    throw ShapeError(error_text(op, "sequences.offsets", "at least 2 entries",
                                std::to_string(sequences.offsets.size())));
  }
  if (sequences.offsets.front() != 0 || sequences.num_rows() != num_rows) {
    throw ShapeError(error_text(
        op, "sequences.offsets", "0 to " + std::to_string(num_rows),
        std::to_string(sequences.offsets.front()) + " to " + std::to_string(sequences.num_rows())));
  }
  for (int64_t s = 0; s < sequences.num(); ++s) {
    if (sequences.length(s) < 1) {
      throw ShapeError(
          error_text(op, "sequences.offsets", "every sequence to have at least one row",
                     std::to_string(sequences.length(s)) + " in sequence " + std::to_string(s)));
    }
  }
  expect_shape(op, "sequences.device_offsets", sequences.device_offsets, {sequences.num() + 1});
  expect_dtype(op, "sequences.device_offsets", sequences.device_offsets, DType::kI32);
}

ArgumentCheck::ArgumentCheck(std::string_view op, std::string_view first_name, const Tensor& first)
    : op_(op), activation_dtype_(first.dtype()) {
  if (!first.defined()) throw ShapeError(error_text(op, first_name, "a tensor", "none"));
  if (activation_dtype_ != DType::kF64 && activation_dtype_ != DType::kF32 &&
      activation_dtype_ != DType::kBF16) {
    throw ShapeError(error_text(op, first_name, "f64, f32 or bf16", dtype_name(activation_dtype_)));
  }
}

void ArgumentCheck::one(std::string_view name, const Tensor& tensor,
                        std::initializer_list<int64_t> shape, DType dtype, Layout layout,
                        Presence presence) const {
  expect_shape(op_, name, tensor, shape, presence);
  if (!tensor.defined()) return;
  expect_dtype(op_, name, tensor, dtype);
  if (layout == Layout::kContiguous) expect_contiguous(op_, name, tensor);
  if (layout == Layout::kStridedRows) expect_packed_rows(op_, name, tensor);
}

void ArgumentCheck::activation(std::string_view name, const Tensor& tensor,
                               std::initializer_list<int64_t> shape, Layout layout,
                               Presence presence) const {
  one(name, tensor, shape, activation_dtype_, layout, presence);
}

void ArgumentCheck::stream(std::string_view name, const Tensor& tensor,
                           std::initializer_list<int64_t> shape, DType dtype, Layout layout,
                           Presence presence) const {
  const bool is_f32_beside_bf16 = dtype == DType::kF32 && activation_dtype_ == DType::kBF16;
  one(name, tensor, shape, is_f32_beside_bf16 ? dtype : activation_dtype_, layout, presence);
}

void ArgumentCheck::statistic(std::string_view name, const Tensor& tensor,
                              std::initializer_list<int64_t> shape, Presence presence) const {
  one(name, tensor, shape, statistics_dtype(), Layout::kContiguous, presence);
}

void ArgumentCheck::integers(std::string_view name, const Tensor& tensor,
                             std::initializer_list<int64_t> shape, Presence presence) const {
  one(name, tensor, shape, DType::kI32, Layout::kContiguous, presence);
}

void ArgumentCheck::that(bool holds, std::string_view name, std::string_view expected,
                         std::string_view got) const {
  if (!holds) throw ShapeError(error_text(op_, name, expected, got));
}

void throw_unsupported(const Context& context, std::string_view op) {
  throw UnsupportedError(error_text(
      op, "", "an implementation in backend " + std::string(context.table->backend), "none"));
}

}  // namespace deltatrain::ops
