#include "loss/lm_head.h"

#include <algorithm>

#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace deltatrain::loss {

int64_t default_chunk_rows(const Context& context, int64_t num_rows, int64_t vocab_size) {
  const bool gpu = context.activation_dtype == DType::kBF16;
  const int64_t budget_bytes = gpu ? int64_t{4} << 30 : int64_t{256} << 20;
  const int64_t row_bytes = vocab_size * dtype_bytes(context.activation_dtype);
  int64_t rows = std::max<int64_t>(1, budget_bytes / row_bytes);
  if (rows >= 256) rows = rows / 256 * 256;
  return std::min(rows, num_rows);
}

void lm_head_loss(const Context& context, const LmHeadLoss& args) {
  const int64_t R = args.hidden_RD.size(0), N = args.weight_ND.size(0);
  const int64_t chunk =
      args.chunk_rows > 0 ? std::min(args.chunk_rows, R) : default_chunk_rows(context, R, N);
  const bool with_gradient = args.d_hidden_RD.defined();
  const Arena::ScratchScope scope(*context.arena);
  const Tensor logits_RN = context.arena->scratch(context.activation_dtype, {chunk, N});
  const Tensor losses_R = context.arena->scratch(context.statistics_dtype(), {R});
  for (int64_t begin = 0; begin < R; begin += chunk) {
    const int64_t end = std::min(R, begin + chunk);
    const Tensor part_RN = logits_RN.rows(0, end - begin);
    const Tensor hidden_RD = args.hidden_RD.rows(begin, end);
    ops::linear_forward(context, {.x_RD = hidden_RD, .weight_XD = args.weight_ND, .y_RX = part_RN});
    ops::cross_entropy(context, {.logits_RN = part_RN,
                                 .labels_R = args.labels_R.rows(begin, end),
                                 .loss_R = losses_R.rows(begin, end),
                                 .grad_scale = args.grad_scale,
                                 .gradient = with_gradient ? ops::CrossEntropy::Gradient::kWrite
                                                           : ops::CrossEntropy::Gradient::kNone});
    if (with_gradient) {
      ops::linear_backward(context, {.dy_RX = part_RN,
                                     .x_RD = hidden_RD,
                                     .weight_XD = args.weight_ND,
                                     .dx_RD = args.d_hidden_RD.rows(begin, end),
                                     .dweight_XD = args.d_weight_ND});
    }
  }
  ops::sum_to(context, {.x_R = losses_R, .result = args.loss_sum});
}

}  // namespace deltatrain::loss
