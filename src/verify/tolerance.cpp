#include "verify/tolerance.h"

namespace deltatrain::verify {

namespace {

// bf16 keeps 8 bits: rounding a result once costs 1.7e-3 in root mean square at worst. The delta
// rule's bounds are those that its published kernels are tested with.
double bf16_tolerance(Quantity quantity) {
  switch (quantity) {
    case Quantity::kExact:
      return 0;
    case Quantity::kRounded:
      return 1e-3;
    case Quantity::kStatistic:
      return 1e-4;
    case Quantity::kElementwise:
    case Quantity::kNorm:
    case Quantity::kProduct:
    case Quantity::kWeightGradient:
      return 0.004;
    case Quantity::kAttention:
    case Quantity::kDeltaOutput:
      return 0.005;
    // Four roundings, one of which a steep function may double.
    case Quantity::kComposed:
    case Quantity::kDeltaGradient:
      return 0.008;
    case Quantity::kDeltaGate:
      return 0.02;
    case Quantity::kUpdate:
      return 1e-6;
  }
  return 0;
}

double f32_tolerance(Quantity quantity) {
  switch (quantity) {
    case Quantity::kExact:
      return 0;
    case Quantity::kRounded:
      return 1e-3;
    case Quantity::kElementwise:
    case Quantity::kUpdate:
      return 1e-6;
    default:
      return 1e-5;
  }
}

}  // namespace

double error_floor(Quantity quantity) {
  // Gradients of gates are sums of many terms that cancel where the state forgets: what is left may
  // be far below the rounding of the terms. Elsewhere only what is zero but for underflow.
  return quantity == Quantity::kDeltaGate ? 0.1 : 1e-30;
}

double tolerance(DType activation_dtype, Quantity quantity) {
  switch (activation_dtype) {
    case DType::kBF16:
      return bf16_tolerance(quantity);
    case DType::kF64:
      return quantity == Quantity::kExact ? 0 : kTwoFormsF64;
    default:
      return f32_tolerance(quantity);
  }
}

}  // namespace deltatrain::verify
