// Kernels that need what only compute capability 9.0 and later has (clusters of blocks that read
// each other's shared memory, bulk copies), or 9.0 alone (products of groups of four warps). Each
// has a portable sibling in the folder above, which the caller takes where a function here returns
// false.
#pragma once

#include "ops/causal_attention.h"
#include "ops/cross_entropy.h"

namespace deltatrain::backend::cuda {

class CudaDevice;

// Products of groups of four warps: the device has them, and this program the machine code for it.
bool has_group_products(const CudaDevice& device);

// A row of logits held on chip by a cluster, which fetches the next ones meanwhile: one read, one
// write. False, with nothing done, unless the device is capable and the logits are bf16 with
// 16-byte aligned rows of at most 262,144 columns.
bool cross_entropy_cluster(CudaDevice& device, const ops::CrossEntropy& args);

// Heads of at most this many elements.
inline constexpr int64_t kMaxGroupWidth = 64;

// Attention's forward for tensors that the tiles take. False, with nothing done, unless the device
// is capable and the heads are narrow enough.
bool attention_forward_groups(CudaDevice& device, const ops::CausalAttentionForward& args);

// Attention's backward with every score computed once. For tensors that the tiles take; delta_RH as
// there, dq_sum_RHX: f32 scratch, X = kMaxGroupWidth. False, with nothing done, unless the device
// is capable, dq_sum is defined and the sequences are many and even enough to be dealt out whole.
bool attention_backward_groups(CudaDevice& device, const ops::CausalAttentionBackward& args,
                               const Tensor& delta_RH, const Tensor& dq_sum_RHX);

}  // namespace deltatrain::backend::cuda
