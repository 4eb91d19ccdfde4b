// Small ops between the large ones.
//
//   add          y = a + b
//   convert      y = x in another dtype (bf16 rounds to nearest even)
//   sum_to       out += sum_r x_r (per-row losses to one number, in f64, in a fixed order)
//   row_argmax   index_r = the column of the largest x_rn, the first of equals; -1 where a row
//   holds NaN or
//                its largest element is infinite
//
// Derivation: none needed.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct Add {
  Tensor a_RD;  // in   rows may be strided
  Tensor b_RD;  // in   rows may be strided
  Tensor y_RD;  // out  rows may be strided; may alias a or b
};

struct Convert {
  Tensor x;  // in   contiguous: f64, f32 or bf16
  Tensor y;  // out  contiguous, the same number of elements: f64, f32 or bf16
};

struct SumTo {
  Tensor x_R;      // in     f32 (f64)
  double* result;  // inout  device memory, accumulates
};

struct RowArgmax {
  Tensor x_RN;     // in   rows may be strided
  Tensor index_R;  // out  i32
};

// Accumulates in f32 (add) and f64 (sum_to). Throws ShapeError for the first argument that disagrees, UnsupportedError
// for a pair of dtypes that convert does not have.
void add(const Context& context, const Add& args);
void convert(const Context& context, const Convert& args);
void sum_to(const Context& context, const SumTo& args);
void row_argmax(const Context& context, const RowArgmax& args);

struct ElementwiseKernels {
  void (*add)(const Context&, const Add&) = nullptr;
  void (*convert)(const Context&, const Convert&) = nullptr;
  void (*sum_to)(const Context&, const SumTo&) = nullptr;
  void (*row_argmax)(const Context&, const RowArgmax&) = nullptr;
};

}  // namespace deltatrain::ops
