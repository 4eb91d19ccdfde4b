// Argument checks shared by the ops: each throws ShapeError for the first argument that disagrees.
#pragma once

#include <initializer_list>
#include <string_view>

#include "ops/context.h"

namespace deltatrain::ops {

enum class Presence : uint8_t { kRequired, kOptional };

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

[[noreturn]] void throw_unsupported(const Context& context, std::string_view op);

}  // namespace deltatrain::ops
