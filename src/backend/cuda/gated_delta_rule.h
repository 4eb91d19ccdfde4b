// ops/gated_delta_rule.h on a CUDA device.
//
// bf16 activations: chunks of 64 rows as products on the matrix units, f32 sums, states f32 while
// they are carried along and bf16 where they are stored; equations in gated_delta_rule/chunks.cuh.
// f32 activations: the recurrence itself. One token per sequence without `saved`: the recurrence
// for both.
//
// Sizes of heads, K x V: GDN 16x16 16x32 64x64 64x128 128x128; KDA 16x16 16x32 32x64 64x64 128x128;
// others throw UnsupportedError with the list, and so do those whose blocks need more shared memory
// than the device has, when a step is planned. In bf16, tensors must allow accesses of 16 bytes, else ShapeError;
// v and dv may have any address and stride, at the price of a copy.
#pragma once

#include <cstdint>
#include <string>

#include "ops/gated_delta_rule.h"

namespace deltatrain::backend::cuda {

void gated_delta_rule_forward(const Context& context, const ops::GatedDeltaRuleForward& args);
void gated_delta_rule_backward(const Context& context, const ops::GatedDeltaRuleBackward& args);
int64_t gated_delta_rule_saved_bytes(const Context& context,
                                     const ops::GatedDeltaRuleForward& args);

enum class DeltaDirection : uint8_t { kForward, kBackward };
enum class DeltaGates : uint8_t { kPerHead, kPerChannel };  // GDN, KDA

// The head sizes for which no block takes more than `shared_bytes` of shared memory, as
// "16x16, 64x64". `dtype` of the activations: bf16 or f32.
std::string delta_head_sizes(DeltaDirection direction, DeltaGates gates, DType dtype,
                             int64_t shared_bytes);

}  // namespace deltatrain::backend::cuda
