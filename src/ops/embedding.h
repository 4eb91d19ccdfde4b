// Token embedding.
//
//   forward    y_r = W[id_r], zeros for id -1
//   backward   dW[n] += sum over rows r with id_r = n of dy_r, in ascending r (a fixed order)
//
// Source: definition. Derivation: docs/maths/embedding.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

struct EmbeddingForward {
  Tensor ids_R;      // in   i32, each in [-1, N): checked by the loader, not here
  Tensor weight_ND;  // in   activation dtype
  Tensor y_RD;       // out  activation dtype or f32
};

struct EmbeddingBackward {
  Tensor ids_R;       // in   i32
  Tensor dy_RD;       // in   activation dtype or f32
  Tensor dweight_ND;  // out  f32 (f64), accumulates
};

// Accumulates in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees.
void embedding_forward(const Context& context, const EmbeddingForward& args);
void embedding_backward(const Context& context, const EmbeddingBackward& args);

struct EmbeddingKernels {
  void (*forward)(const Context&, const EmbeddingForward&) = nullptr;
  void (*backward)(const Context&, const EmbeddingBackward&) = nullptr;
};

}  // namespace deltatrain::ops
