// Convolution, SiLU and L2 norm of q and k in one pass each way. Heads of 16 to 128 channels and
// four taps in bf16; everything else by parts.
#include "ops/short_conv_norm.h"

#include "backend/cuda/head_rows.cuh"  // LaneCount
#include "backend/cuda/kernels.h"
#include "backend/cuda/short_conv.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int64_t kNormBackwardBlocks = 528;
constexpr int kNormVector = 8;  // channels per thread of backward: sums over heads take fewer lanes

// Calls function(LaneCount<width / channels per thread>{}) for the widths of heads that there are.
template <int kChannels, class Function>
void with_lanes(int64_t width, Function function) {
  switch (width) {
    case 16:
      return function(LaneCount<16 / kChannels>{});
    case 32:
      return function(LaneCount<32 / kChannels>{});
    case 64:
      return function(LaneCount<64 / kChannels>{});
    default:
      return function(LaneCount<128 / kChannels>{});
  }
}

template <class Args>
bool is_fused(const Args& args) {
  const int64_t K = args.q_RHK.size(2);
  return args.x_RX.dtype() == DType::kBF16 && args.weight_XW.size(1) == kUsualTaps &&
         (K == 16 || K == 32 || K == 64 || K == 128) &&
         all_aligned(args.x_RX, args.weight_XW, args.q_RHK, args.k_RHK);
}

}  // namespace

void short_conv_norm_forward(const Context& context, const ops::ShortConvNormForward& args) {
  if (!is_fused(args) || args.initial_history_SWX.defined() || args.final_history_SWX.defined()) {
    return ops::short_conv_norm_forward_by_parts(context, args);
  }
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.x_RX.size(1);
  const int64_t H = args.q_RHK.size(1);
  with_lanes<kForwardVector>(args.q_RHK.size(2), [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    const int64_t channel_blocks = divide_up(X, kConvBlock * kForwardVector);
    const int64_t rows = conv_forward_rows(R, channel_blocks);
    launch(device, "short_conv_norm_forward_kernel",
           short_conv_forward_kernel<Bf16, kUsualTaps, kForwardVector, kLanes>,
           divide_up(R, rows) * channel_blocks, kConvBlock, 0, pointer<const Bf16>(args.x_RX),
           args.x_RX.stride(0), pointer<const float>(args.weight_XW), kUsualTaps,
           pointer<const int32_t>(args.sequences.device_offsets), narrow<int>(args.sequences.num()),
           static_cast<const float*>(nullptr),
           ConvRows<Bf16>{pointer<Bf16>(args.q_RHK), pointer<Bf16>(args.k_RHK), X / 2, X / 2},
           ConvNorms<float>{pointer<float>(args.q_inv_norm_RH), pointer<float>(args.k_inv_norm_RH),
                            H, static_cast<float>(args.eps)},
           R, X, rows, channel_blocks);
  });
}

void short_conv_norm_backward(const Context& context, const ops::ShortConvNormBackward& args) {
  if (!is_fused(args) || !all_aligned(args.dq_RHK, args.dk_RHK, args.dx_RX)) {
    return ops::short_conv_norm_backward_by_parts(context, args);
  }
  const int64_t R = args.x_RX.size(0);
  const int64_t X = args.x_RX.size(1);
  const int64_t H = args.q_RHK.size(1);
  const int64_t channel_blocks = divide_up(X, kConvBlock * kNormVector);
  const int64_t rows = conv_backward_rows(R, channel_blocks, kNormBackwardBlocks);
  const int64_t ranges = std::max<int64_t>(1, divide_up(R, rows));
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial = context.arena->scratch(DType::kF32, {ranges, X * kUsualTaps});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  with_lanes<kNormVector>(args.q_RHK.size(2), [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    launch(device, "short_conv_norm_backward_kernel",
           short_conv_backward_kernel<Bf16, kUsualTaps, kNormVector, kLanes>,
           ranges * channel_blocks, kConvBlock, 0,
           ConvRows<const Bf16>{pointer<const Bf16>(args.dq_RHK), pointer<const Bf16>(args.dk_RHK),
                                X / 2, X / 2},
           ConvNorms<const float>{pointer<const float>(args.q_inv_norm_RH),
                                  pointer<const float>(args.k_inv_norm_RH), H, 0},
           pointer<const Bf16>(args.x_RX), args.x_RX.stride(0),
           pointer<const float>(args.weight_XW), kUsualTaps,
           pointer<const int32_t>(args.sequences.device_offsets), narrow<int>(args.sequences.num()),
           pointer<Bf16>(args.dx_RX), args.dx_RX.stride(0), pointer<float>(partial), R, X, rows,
           channel_blocks);
  });
  add_partial_rows(device, partial, pointer<float>(args.dweight_XW));
}

}  // namespace deltatrain::backend::cuda
