// The output head: logits from normed hidden states, and the cross-entropy of a whole batch without
// ever holding all its logits.
//
//   logits = hidden W^T      loss = sum over valid rows of (lse - logit of the label)
//   d_hidden = dlogits W     dW += dlogits^T hidden        dlogits scaled by grad_scale
//
// Rows go through in chunks: one buffer [chunk_rows, N] serves logits and their gradients.
#pragma once

#include "ops/context.h"

namespace deltatrain::loss {

struct LmHeadLoss {
  Tensor hidden_RD;        // in     activation dtype
  Tensor weight_ND;        // in     activation dtype
  Tensor labels_R;         // in     i32, ops::kIgnoredLabel where a row doesn't count
  double* loss_sum;        // inout  device memory: the sum of losses is added, not the mean
  Tensor d_hidden_RD;      // out    optional: overwrites
  Tensor d_weight_ND;      // inout  with d_hidden: f32 (f64), accumulates
  double grad_scale = 1;   // 1 / valid tokens of the global batch
  int64_t chunk_rows = 0;  // 0: default_chunk_rows
};

// Scratch of chunk_rows * N elements comes from the arena.
void lm_head_loss(const Context& context, const LmHeadLoss& args);

// Rows per chunk that keep the logits buffer near 256 MiB on the CPU and 4 GiB on a GPU.
int64_t default_chunk_rows(const Context& context, int64_t num_rows, int64_t vocab_size);

}  // namespace deltatrain::loss
