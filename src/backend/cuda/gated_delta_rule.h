// ops/gated_delta_rule.h on a CUDA device.
//
// bf16 activations: chunks of 64 rows as products on the matrix units, f32 sums, states f32 while
// they are carried along and bf16 where they are stored; equations in gated_delta_rule/chunks.cuh.
// f32 activations: the recurrence itself. One token per sequence without `saved`: the recurrence
// for both.
//
// Sizes of heads, K x V: GDN 16x16 16x32 64x64 64x128 128x128; KDA 16x16 16x32 32x64 64x64 128x128;
// others throw UnsupportedError. In bf16, tensors must allow accesses of 16 bytes, else ShapeError;
// v and dv may have any address and stride, at the price of a copy.
#pragma once

#include "ops/gated_delta_rule.h"

namespace deltatrain::backend::cuda {

void gated_delta_rule_forward(const Context& context, const ops::GatedDeltaRuleForward& args);
void gated_delta_rule_backward(const Context& context, const ops::GatedDeltaRuleBackward& args);
int64_t gated_delta_rule_saved_bytes(const Context& context,
                                     const ops::GatedDeltaRuleForward& args);

}  // namespace deltatrain::backend::cuda
