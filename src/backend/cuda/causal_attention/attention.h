// The ways attention is computed, chosen in attention.cpp.
//
// Tiles: bf16 products of matrices, heads of up to 128 elements in multiples of 8. Tiles of f32:
// sums in registers, heads of up to 64 elements in multiples of 4. Rows: one block per row and
// head, any type and width up to 256, and the only one that knows the cache.
#pragma once

#include "backend/cuda/cuda_device.h"
#include "ops/causal_attention.h"

namespace deltatrain::backend::cuda {

inline constexpr int64_t kMaxAttentionWidth = 256;
inline constexpr int64_t kMaxTileWidth = 128;
inline constexpr int64_t kMaxF32TileWidth = 64;

void attention_tiles_forward(CudaDevice& device, const ops::CausalAttentionForward& args);
// delta_RH: do . o of every row and head. row_begins_R: i32, the first row of each row's sequence.
void attention_tiles_backward(CudaDevice& device, const ops::CausalAttentionBackward& args,
                              const Tensor& delta_RH, const Tensor& row_begins_R);

// In f32. delta_RH: written here.
void attention_f32_tiles_forward(CudaDevice& device, const ops::CausalAttentionForward& args);
void attention_f32_tiles_backward(CudaDevice& device, const ops::CausalAttentionBackward& args,
                                  const Tensor& delta_RH, const Tensor& row_begins_R);

void attention_rows_forward(CudaDevice& device, const ops::CausalAttentionForward& args);
void attention_rows_backward(CudaDevice& device, const ops::CausalAttentionBackward& args,
                             const Tensor& delta_RH);

// What backward needs first: delta_RH by rows and by tiles in bf16, row_begins_R by tiles of either type.
void attention_backward_delta(CudaDevice& device, const ops::CausalAttentionBackward& args,
                              const Tensor& delta_RH);
void attention_backward_begins(CudaDevice& device, const ops::CausalAttentionBackward& args,
                               const Tensor& row_begins_R);

}  // namespace deltatrain::backend::cuda
