// Small ops between the large ones.
//
//   add          y = a + b
//   convert      y = x in another dtype (bf16 rounds to nearest even)
//   sum_to       out += sum_r x_r (per-row losses to one number, in f64, in a fixed order)
//   copy_rows    y[to_r] = x[from_r], zeros where from_r is -1: states of sequences between slots
//   row_argmax   index_r = the column of the largest x_rn, the first of equals; -1 where a row
//   holds NaN or
//                its largest element is infinite
//   checksum     out += sum_i mix((i + 1) * 0x9E3779B97F4A7C15 + word_i * 0xD1B54A32D192ED03) modulo 2^64, where the
//                words are the tensor's bytes taken four at a time and mix is the finalizer of SplitMix64: for equal
//                bits the same number on every backend
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

// Rows of any dtype, moved as they are.
struct CopyRows {
  Tensor x_X;       // in   contiguous, [rows, ...]
  Tensor from_R;    // in   i32 in [-1, rows of x)
  Tensor y_X;       // out  contiguous, dtype and row shape of x; other rows than to_R keep theirs
  Tensor to_R;      // in   i32 in [0, rows of y), each once
  Tensor counts_R;  // in   optional, i32: of row r only [0, counts_r) of axis 1 is moved
};

struct RowArgmax {
  Tensor x_RN;     // in   rows may be strided
  Tensor index_R;  // out  i32
};

struct Checksum {
  Tensor x_X;        // in     any dtype, contiguous, a multiple of 4 bytes
  uint64_t* result;  // inout  device memory, accumulates
};

// One term of a checksum.
constexpr uint64_t checksum_term(uint64_t index, uint32_t word) {
  uint64_t z = (index + 1) * 0x9E3779B97F4A7C15U + word * 0xD1B54A32D192ED03U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// Accumulates in f32 (add) and f64 (sum_to). Throws ShapeError for the first argument that disagrees, UnsupportedError
// for a pair of dtypes that convert does not have.
void add(const Context& context, const Add& args);
void convert(const Context& context, const Convert& args);
void sum_to(const Context& context, const SumTo& args);
// x and y do not overlap; indices are not looked at.
void copy_rows(const Context& context, const CopyRows& args);
void row_argmax(const Context& context, const RowArgmax& args);
void checksum(const Context& context, const Checksum& args);

struct ElementwiseKernels {
  void (*add)(const Context&, const Add&) = nullptr;
  void (*convert)(const Context&, const Convert&) = nullptr;
  void (*sum_to)(const Context&, const SumTo&) = nullptr;
  void (*row_argmax)(const Context&, const RowArgmax&) = nullptr;
  void (*checksum)(const Context&, const Checksum&) = nullptr;
  void (*copy_rows)(const Context&, const CopyRows&) = nullptr;
};

}  // namespace deltatrain::ops
