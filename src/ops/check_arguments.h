// Argument checks shared by the ops: each throws ShapeError for the first argument that disagrees.
//
// Shape, dtype and layout are all that is looked at: the checks never read data, so
// they also run where addresses are made up (DeviceKind::kPlan).
#pragma once

#include <initializer_list>
#include <string_view>

#include "ops/context.h"
#include "ops/op_table.h"

namespace deltatrain::ops {

enum class Presence : uint8_t { kRequired, kOptional };

// kContiguous: no gaps. kStridedRows: every axis but the first is packed. kStridedHeads: rows and
// heads may have gaps, only the last axis is packed.
enum class Layout : uint8_t { kContiguous, kStridedRows, kStridedHeads };

// Axis size wildcard for expect_shape.
inline constexpr int64_t kAnySize = -1;

// `tensor` is defined and has this shape (kAnySize matches all).
void expect_shape(std::string_view op, std::string_view name, const Tensor& tensor,
                  std::initializer_list<int64_t> shape, Presence presence = Presence::kRequired);
void expect_dtype(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype);
void expect_contiguous(std::string_view op, std::string_view name, const Tensor& tensor);
// A row-strided tensor: every axis but the first is packed.
void expect_packed_rows(std::string_view op, std::string_view name, const Tensor& tensor);
// Offsets rise from 0 to num_rows, no sequence is empty, and the device copy has num + 1 entries.
void expect_sequences(std::string_view op, const Sequences& sequences, int64_t num_rows);

// The checks of one call. Its first tensor decides the dtypes of the others: activations have that
// dtype, statistics f32, or f64 where it is f64.
class ArgumentCheck {
 public:
  // `first` is defined and holds f64, f32 or bf16; its shape is checked like that of the others.
  ArgumentCheck(std::string_view op, std::string_view first_name, const Tensor& first);

  void activation(std::string_view name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                  Layout layout = Layout::kContiguous,
                  Presence presence = Presence::kRequired) const;
  // A tensor of the residual stream: `dtype` is that of activations, or f32 beside bf16 activations.
  void stream(std::string_view name, const Tensor& tensor, std::initializer_list<int64_t> shape,
              DType dtype, Layout layout = Layout::kContiguous,
              Presence presence = Presence::kRequired) const;
  void statistic(std::string_view name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 Presence presence = Presence::kRequired) const;
  void integers(std::string_view name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                Presence presence = Presence::kRequired) const;
  void sequences(const Sequences& sequences, int64_t num_rows) const {
    expect_sequences(op_, sequences, num_rows);
  }
  // Anything else: ShapeError unless `holds`.
  void that(bool holds, std::string_view name, std::string_view expected,
            std::string_view got) const;

  DType activation_dtype() const { return activation_dtype_; }
  DType statistics_dtype() const {
    return activation_dtype_ == DType::kF64 ? DType::kF64 : DType::kF32;
  }

 private:
  void one(std::string_view name, const Tensor& tensor, std::initializer_list<int64_t> shape,
           DType dtype, Layout layout, Presence presence) const;

  std::string_view op_;
  DType activation_dtype_;
};

[[noreturn]] void throw_unsupported(const Context& context, std::string_view op);

// Calls the backend's function, or throws UnsupportedError where it has none.
template <class Args>
void call_backend(std::string_view op, void (*function)(const Context&, const Args&),
                  const Context& context, const Args& args) {
  if (function == nullptr) throw_unsupported(context, op);
  OpObserver* const observer = context.table->observer;
  if (observer != nullptr) observer->begin(op);
  function(context, args);
  if (observer != nullptr) observer->end(op);
}

}  // namespace deltatrain::ops
