#include "backend/cuda/causal_attention/attention.h"
#include "backend/cuda/causal_attention/f32_tiles.cuh"

namespace deltatrain::backend::cuda {

namespace attention_f32 {
namespace {

struct ForwardArguments : Inputs {
  float* o;
  float* lse;  // may be null
};

constexpr size_t kForwardShared =
    sizeof(float) * ((kRows + 2 * kStep) * kStride + kRows * kWeightStride);

// Grid: tiles of kRows query rows x heads. A block owns a tile, a lane kM of its rows with their
// running maxima and its part of their sums and outputs in registers; keys and values stream past
// in tiles of kStep, keys under way while values are used and the other way round. Tiles are cut
// without regard to sequences: a row sees the keys from its sequence's begin to itself. Operations:
// 2 (K + V) per query and key. Bytes: q, o and lse once, k and v once per tile that sees them.
// Dynamic shared: kForwardShared.
__global__ void __launch_bounds__(kThreads, 3)
    causal_attention_forward_f32_kernel(ForwardArguments args) {
  float* const s_q = dynamic_shared<float>();
  float* const s_k = s_q + kRows * kStride;
  float* const s_v = s_k + kStep * kStride;
  float* const s_p = s_v + kStep * kStride;
  const attention::TileIndex index(args.H, true);
  const int first_row = index.tile * kRows;
  if (first_row >= args.R) return;
  const int end_row = min(first_row + kRows, args.R);
  const HeadRows q = args.q_rows(index.head);
  const HeadRows k = args.k_rows(index.head);
  const HeadRows v = args.v_rows(index.head);
  const LanePlace place;
  const int warp_row = first_row + warp_id() * kWarpRows;
  const int first_key = args.offsets[args.sequence(first_row)];
  const int last_begin = args.offsets[args.sequence(end_row - 1)];
  const int num_steps = (end_row - first_key + kStep - 1) / kStep;

  copy_tile<kRows>(s_q, q, first_row, args.R);
  copy_tile<kStep>(s_k, k, first_key, args.R);
  copy_async_commit();
  copy_tile<kStep>(s_v, v, first_key, args.R);
  copy_async_commit();

  int begin[kM];
  float maximum[kM];
  float sum[kM];
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int row = first_row + place.row + i * kRowLanes;
    begin[i] = row < args.R ? args.offsets[args.sequence(row)] : row;
    maximum[i] = -1.0e30F;
    sum[i] = 0;
  }
  float out[kM][kN] = {};
  copy_async_wait<1>();
  __syncthreads();

  for (int step = 0; step < num_steps; ++step) {
    const int key0 = first_key + step * kStep;
    const bool last = step + 1 == num_steps;
    const bool seen = key0 <= warp_row + kWarpRows - 1;  // by some row of the warp
    float p[kM][kN] = {};
    if (seen) add_scores(p, s_q, s_k, place, args.K);
    copy_async_wait<0>();
    __syncthreads();  // the values are there, and the keys have been used
    if (!last) copy_tile<kStep>(s_k, k, key0 + kStep, args.R);
    copy_async_commit();
    if (seen) {
      const bool masked = key0 + kStep - 1 > warp_row || key0 < last_begin;
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        const int row = first_row + place.row + i * kRowLanes;
        float largest = maximum[i];
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          p[i][j] *= args.scale;
          const int key = key0 + place.column + j * kColumnLanes;
          if (masked && (key > row || key < begin[i])) p[i][j] = -INFINITY;
          largest = fmaxf(largest, p[i][j]);
        }
        largest = max_over_lanes<kColumnLanes>(largest);
        const float correction = expf(maximum[i] - largest);
        maximum[i] = largest;
        sum[i] *= correction;
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          p[i][j] = expf(p[i][j] - largest);
          sum[i] += p[i][j];
          out[i][j] *= correction;
        }
      }
      share_weights(s_p, p, place);
      add_weighted_rows(out, s_p, s_v, place);
    }
    copy_async_wait<0>();
    __syncthreads();  // the next keys are there, and the values have been used
    if (!last) copy_tile<kStep>(s_v, v, key0 + kStep, args.R);
    copy_async_commit();
  }

#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const float total = sum_over_lanes<kColumnLanes>(sum[i]);
    const float inverse = 1.0F / total;
#pragma unroll
    for (int j = 0; j < kN; ++j) out[i][j] *= inverse;
    const int row = first_row + place.row + i * kRowLanes;
    if (args.lse != nullptr && place.column == 0 && row < args.R)
      args.lse[static_cast<int64_t>(row) * args.H + index.head] = maximum[i] + logf(total);
  }
  store_sums(out, 1.0F, args.o + index.head * args.V, int64_t{args.H} * args.V, first_row, args.R,
             args.V, place);
}

}  // namespace
}  // namespace attention_f32

void attention_f32_tiles_forward(CudaDevice& device, const ops::CausalAttentionForward& args) {
  const attention_f32::ForwardArguments arguments{
      attention_f32::inputs(args), pointer<float>(args.o_RHV), pointer<float>(args.lse_RH)};
  allow_shared_bytes(attention_f32::causal_attention_forward_f32_kernel,
                     attention_f32::kForwardShared);
  launch(device, "causal_attention_forward_f32_kernel",
         attention_f32::causal_attention_forward_f32_kernel,
         attention::num_tile_blocks(divide_up(arguments.R, attention_f32::kRows), arguments.H),
         attention_f32::kThreads, attention_f32::kForwardShared, arguments);
}

}  // namespace deltatrain::backend::cuda
