#include "backend/cuda/causal_attention/attention.h"

#include <algorithm>
#include <string>

#include "backend/cuda/alignment.h"
#include "backend/cuda/hopper/hopper_kernels.h"
#include "backend/cuda/kernels.h"
#include "base/error.h"

namespace deltatrain::backend::cuda {

namespace {

void expect_supported(const char* op, const Tensor& q_RHK, const Tensor& v_RHV, double scale) {
  const int64_t width = std::max(q_RHK.size(2), v_RHV.size(2));
  if (width > kMaxAttentionWidth) {
    throw UnsupportedError(error_text(
        op, "backend cuda", "heads of at most " + std::to_string(kMaxAttentionWidth) + " elements",
        std::to_string(width)));
  }
  if (!(scale > 0))
    throw UnsupportedError(error_text(op, "scale", "a number above 0", std::to_string(scale)));
}

// Copies of 16 bytes need addresses and strides to match; so do the elements that are stored
// together.
template <class... Tensors>
bool fits(DType dtype, int64_t max_width, const Tensor& q_RHK, const Tensor& v_RHV,
          const Tensors&... others) {
  const auto fits_width = [&](int64_t width) {
    return width * dtype_bytes(dtype) % 16 == 0 && width <= max_width;
  };
  return q_RHK.dtype() == dtype && fits_width(q_RHK.size(2)) && fits_width(v_RHV.size(2)) &&
         all_aligned(q_RHK, v_RHV, others...);
}

template <class... Tensors>
bool fits_tiles(const Tensors&... tensors) {
  return fits(DType::kBF16, kMaxTileWidth, tensors...);
}

template <class... Tensors>
bool fits_f32_tiles(const Tensors&... tensors) {
  return fits(DType::kF32, kMaxF32TileWidth, tensors...);
}

}  // namespace

void causal_attention_forward(const Context& context, const ops::CausalAttentionForward& args) {
  expect_supported("causal_attention_forward", args.q_RHK, args.v_RHV, args.scale);
  CudaDevice& device = cuda_device(context);
  if (args.k_cache_SXHK.defined()) {
    attention_rows_forward(device, args);
  } else if (fits_tiles(args.q_RHK, args.v_RHV, args.k_RHK, args.o_RHV)) {
    if (!attention_forward_groups(device, args)) attention_tiles_forward(device, args);
  } else if (fits_f32_tiles(args.q_RHK, args.v_RHV, args.k_RHK, args.o_RHV)) {
    attention_f32_tiles_forward(device, args);
  } else {
    attention_rows_forward(device, args);
  }
}

void causal_attention_backward(const Context& context, const ops::CausalAttentionBackward& args) {
  expect_supported("causal_attention_backward", args.q_RHK, args.v_RHV, args.scale);
  const int64_t R = args.q_RHK.size(0);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor delta_RH = context.arena->scratch(DType::kF32, {R, args.q_RHK.size(1)});
  const Tensor row_begins_R = context.arena->scratch(DType::kI32, {R});
  const bool tiles = fits_tiles(args.q_RHK, args.v_RHV, args.k_RHK, args.do_RHV, args.dq_RHK,
                                args.dk_RHK, args.dv_RHV);
  Tensor dq_sum_RHX;
  if (tiles && std::max(args.q_RHK.size(2), args.v_RHV.size(2)) <= kMaxGroupWidth) {
    dq_sum_RHX = context.arena->scratch(DType::kF32, {R, args.q_RHK.size(1), kMaxGroupWidth});
  }
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  attention_backward_begins(device, args, row_begins_R);
  if (fits_f32_tiles(args.q_RHK, args.v_RHV, args.k_RHK, args.do_RHV, args.o_RHV, args.dq_RHK,
                     args.dk_RHK, args.dv_RHV)) {
    attention_f32_tiles_backward(device, args, delta_RH, row_begins_R);
    return;
  }
  attention_backward_delta(device, args, delta_RH);
  if (tiles) {
    if (!attention_backward_groups(device, args, delta_RH, dq_sum_RHX))
      attention_tiles_backward(device, args, delta_RH, row_begins_R);
  } else {
    attention_rows_backward(device, args, delta_RH);
  }
}

}  // namespace deltatrain::backend::cuda
