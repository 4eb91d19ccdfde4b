// Rotary position embedding, half-split form: channel i turns with channel i + X/2.
//
//   forward    angle_i = position theta^(-2 i / X)
//              y_i       = x_i cos(angle_i) - x_{i + X/2} sin(angle_i)
//              y_{i+X/2} = x_{i + X/2} cos(angle_i) + x_i sin(angle_i)
//   backward   the same with -angle
//
// A row's position is its distance from the start of its sequence, plus the sequence's start position.
// Angles are computed in double. X: width of the rotated part, even.
// Source: arXiv:2104.09864. Derivation: docs/maths/rotary.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

enum class RotaryDirection : uint8_t { kForward, kBackward };  // kBackward turns back: the gradient

struct Rotary {
  Tensor x_RHX;             // in   rows and heads may be strided
  Tensor y_RHX;             // out  rows and heads may be strided; may alias x
  Sequences sequences;
  Tensor start_positions_S; // in   optional, i32: tokens of each sequence that came before
  double theta = 10000;
  RotaryDirection direction = RotaryDirection::kForward;
};

// Accumulates in f32 (f64 for f64), two products at a time. Throws ShapeError for the first argument that disagrees.
void rotary(const Context& context, const Rotary& args);

struct RotaryKernels {
  void (*apply)(const Context&, const Rotary&) = nullptr;
};

}  // namespace deltatrain::ops
