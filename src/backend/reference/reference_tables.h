// The reference backend's functions, by area; each fills its slots of the table.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/op_table.h"

namespace deltatrain::backend {

void fill_reference_dense_ops(
    ops::OpTable& table);  // linear, embedding, norms, swiglu, loss, attention
void fill_reference_delta_ops(ops::OpTable& table);   // convolution, gates, delta rule
void fill_reference_update_ops(ops::OpTable& table);  // optimizer and element-wise ops

// Calls f(double{}) or f(float{}), whichever `tensor` holds.
template <class Function>
void with_scalar_of(std::string_view op, const Tensor& tensor, const Function& f) {
  if (tensor.dtype() == DType::kF64) {
    f(double{});
  } else if (tensor.dtype() == DType::kF32) {
    f(float{});
  } else {
    throw UnsupportedError(
        error_text("backend reference", op, "f64 or f32", dtype_name(tensor.dtype())));
  }
}

}  // namespace deltatrain::backend
