// How far a backend may be from the reference, per tensor:
// by dtype of the activations and kind of quantity.
//
// An error is ||got - reference||_2 / ||reference||_2 over the whole tensor, where the reference is
// the plain loops in f64, fed exactly the rounded inputs of the backend. docs/numerics.md gives the
// reasons. Tests of ops, layers and models take their bounds from here, and nothing loosens them.
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
  kComposed,        // several ops in one that round in between
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

// What the tests compare besides single ops; relative where it is not said.
inline constexpr double kComplexStep = 1e-13;  // backward in f64 against the complex step
inline constexpr double kTwoFormsF64 = 1e-12;  // one quantity in f64 by two formulas; any op in f64
inline constexpr double kFileOfF32InF64 = 1e-6;  // f64 against a file of f32
inline constexpr double kMixerF32 = 1e-5;        // l2_norm, gates and delta rule together in f32

struct ModelBounds {
  double logits, loss, gradient;
};
inline constexpr ModelBounds kModelF64 = {2e-7, 2e-7, 2e-7};  // whole models against files of f32
inline constexpr ModelBounds kModelF32 = {1e-5, 1e-6, 1e-4};

inline constexpr double kPiecesF32 = 1e-5;       // a prompt fed in pieces or beside others
inline constexpr double kPiecesBf16 = 0.06;      // the same: either within 0.03 of exact logits
inline constexpr double kPiecesLogitF32 = 1e-4;  // absolute: each logit at initial weights
inline constexpr double kPiecesLogitBf16 = 2e-2;
inline constexpr double kAttentionPiecesF32 = 1e-6;  // attention through a cache against the whole

inline constexpr double kPinnedLoss = 1e-6;       // absolute: ten losses written down, in f64
inline constexpr double kTrainedLossF32 = 1e-5;   // the same steps in f32 against f64
inline constexpr double kTrainedNormF32 = 1e-4;   // gradient norms of these steps
inline constexpr double kMicroBatchesF32 = 1e-6;  // one global batch cut in other micro-batches

}  // namespace deltatrain::verify
