// How far a backend may be from the reference, per tensor: by dtype of the activations and kind of
// quantity.
//
// An error is ||got - reference||_2 / ||reference||_2 over the whole tensor, where the reference is
// the plain loops in f64, fed exactly the rounded inputs of the backend. docs/numerics.md gives the
// reasons. Nothing else in the project holds a tolerance for an op, and nothing loosens these.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace deltatrain::verify {

enum class Quantity : uint8_t {
  kExact,           // moved or masked, not computed
  kRounded,         // the same number rounded once; a tie may fall either way
  kElementwise,     // activations: one rounding of a short formula
  kStatistic,       // f32 beside the activations: inverse norms, gates, losses, log-sum-exp
  kNorm,            // outputs and input gradients of norms, convolution, gates and softmax
  kProduct,         // outputs and input gradients of matrix products
  kWeightGradient,  // f32 sums over rows
  kAttention,       // softmax attention and its gradients
  kDeltaOutput,     // o and the state of the delta rule
  kDeltaGradient,   // gradients of q, k, v and the initial state
  kDeltaGate,       // gradients of beta and the log decay
  kUpdate,          // optimizer state and parameters
};

double tolerance(DType activation_dtype, Quantity quantity);

// Root mean square below which a tensor's error counts as absolute. Upstream gradients of the cases
// have size 1.
double error_floor(Quantity quantity);

// No single element may be off by more than this many tolerances of (its own size + the root mean
// square of its tensor): a norm alone would let one wrong element of a large tensor pass.
inline constexpr double kElementFactor = 30;

}  // namespace deltatrain::verify
