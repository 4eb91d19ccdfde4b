// The optimizer's pass over flat buffers: gradient norm, and AdamW with decoupled decay.
//
//   sum_of_squares   result (+)= sum_i grad_i^2, in f64, in a fixed order
//   adamw            m = b1 m + (1 - b1) c g            v = b2 v + (1 - b2) (c g)^2
//                    p = p - lr (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + decay p)
//
// c is the clip factor min(1, clip / (norm + 1e-6)). Where the norm or the step's loss is not finite nothing changes.
// All that changes from step to step is read through `scalars`, so a step has no host branch.
// Source: arXiv:1711.05101. Derivation: docs/maths/adamw.md.
#pragma once

#include "ops/context.h"

namespace deltatrain::ops {

// Lives in the device's memory.
struct StepScalars {
  double sum_of_squares = 0;    // of the whole gradient, written by sum_of_squares
  double gradient_norm = 0;     // written by finish_gradient_norm
  double clip_factor = 1;       // written by finish_gradient_norm
  double learning_rate = 0;     // written by the host before the step, as all below
  double step = 1;              // 1 for the first update
  double clip_grad = 1;         // 0: no clipping
  // finish_gradient_norm adds 1 where norm or loss is not finite; adamw changes nothing where this is not 0. The host
  // sets it to 0 before the step and reads it after.
  int64_t skipped = 0;
};

struct SumOfSquares {
  Tensor gradient_X;        // in   f32 (f64), contiguous
  StepScalars* scalars;     // out  sum_of_squares; device memory
  GradMode mode = GradMode::kOverwrite;  // kAccumulate: added to the sum that is there
};

// norm = sqrt(sum_of_squares); clip_factor from it; `skipped` where norm or loss is not finite.
struct FinishGradientNorm {
  StepScalars* scalars;              // inout  device memory
  const double* loss_sum = nullptr;  // in     optional, device memory: the step's loss, as sum_to left it
};

struct AdamW {
  Tensor parameter_X;       // inout  f32 (f64) master, contiguous
  Tensor compute_X;         // out    optional, bf16 copy for products
  Tensor gradient_X;        // in     f32 (f64)
  Tensor m_X;               // inout  f32 (f64)
  Tensor v_X;               // inout  f32 (f64)
  Tensor decays_X;          // in     u8: 1 where weight decay applies, per block of kDecayBlock elements
  StepScalars* scalars;     // in     device memory
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
};

inline constexpr int64_t kDecayBlock = 64;  // parameters are laid out so that no block mixes groups

// The norm accumulates in f64, adamw in f32 (f64 for f64). Throws ShapeError for the first argument that disagrees.
void sum_of_squares(const Context& context, const SumOfSquares& args);
void finish_gradient_norm(const Context& context, const FinishGradientNorm& args);
void adamw(const Context& context, const AdamW& args);

struct AdamWKernels {
  void (*sum_of_squares)(const Context&, const SumOfSquares&) = nullptr;
  void (*finish_gradient_norm)(const Context&, const FinishGradientNorm&) = nullptr;
  void (*adamw)(const Context&, const AdamW&) = nullptr;
};

}  // namespace deltatrain::ops
