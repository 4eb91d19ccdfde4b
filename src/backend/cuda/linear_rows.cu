#include "backend/cuda/linear_rows.h"

#include "backend/cuda/gemm_library.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_tiles.h"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kVector = 8;          // elements of a 16-byte access
constexpr int kPart = 4 * kVector;  // columns of D that a warp takes at a time
constexpr int kOutTile = 8;         // outputs of one matrix instruction
constexpr int kRowTile = 16;        // rows of one
constexpr int kTileElements = kOutTile * kRowTile;

using Vector = Pack<Bf16, kVector>;

__device__ __forceinline__ Vector load_or_zero(const Bf16* from, bool valid) {
  Vector vector;
  vector.set_zero();
  if (valid) vector = load_pack<Bf16, kVector>(from);
  return vector;
}

__device__ __forceinline__ Vector load_weight(const Bf16* from, bool valid) {
  Vector vector;
  vector.set_zero();
  if (valid) vector = load_pack<Bf16, kVector, Reuse::kStreaming>(from);
  return vector;
}

// y[r, x] of kRowTiles * 16 rows and kOutTiles * 8 outputs.
//
// Grid: output blocks x row blocks, row blocks first, so that blocks with the same weights run
// together. Warp w sums columns of D in parts w, w + 8, ... of 32, and the warps' sums are added in
// order. In a part, lane (g, t) of a group of four
// holds columns 8t to 8t + 7 of output g and of rows g and g + 8: the matrix instruction is told
// that these are its columns 2t, 2t + 1, 2t + 8 and 2t + 9, twice, which the sum does not notice
// since both operands agree. Static shared: one float per warp, row and output of a tile. Bytes: the
// weights once per row block, the rows once per output block.
template <class Out, int kOutTiles, int kRowTiles, int kAhead>
__global__ void __launch_bounds__(kThreads)
    linear_rows_kernel(const Bf16* x, int64_t x_stride, const Bf16* weight, int64_t weight_stride,
                       const float* bias, Out* y, int64_t y_stride, bool accumulate, int R, int D,
                       int X, int row_blocks) {
  __shared__ float s_sums[kWarps][kRowTiles * kTileElements];
  const int out_block = static_cast<int>(blockIdx.x) / row_blocks;
  const int first_out = out_block * kOutTiles * kOutTile;
  const int first_row =
      (static_cast<int>(blockIdx.x) - out_block * row_blocks) * kRowTiles * kRowTile;
  const int lane = lane_id();
  const int warp = warp_id();
  const int g = lane / 4;
  const int t = lane % 4;

  float sums[kOutTiles][kRowTiles][4] = {};
  const int num_parts = (D + kPart - 1) / kPart;
  for (int base = warp; base < num_parts; base += kWarps * kAhead) {
    Vector w[kAhead][kOutTiles];
    Vector a[kAhead][kRowTiles][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = (base + i * kWarps) * kPart + t * kVector;
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o) {
        const int out = first_out + o * kOutTile + g;
        w[i][o] = load_weight(weight + out * weight_stride + column, out < X && column < D);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first_row + r * kRowTile + half * 8 + g;
          a[i][r][half] = load_or_zero(x + row * x_stride + column, row < R && column < D);
        }
      }
    }
    // Without it the compiler spares registers by loading a part when it is needed, one latency
    // each.
    sync_warp();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const Vector& low = a[i][r][0];
          const Vector& high = a[i][r][1];
#pragma unroll
          for (int k = 0; k < 4; k += 2) {
            const uint32_t rows[4] = {low.words[k], high.words[k], low.words[k + 1],
                                      high.words[k + 1]};
            mma_16x8x16_bf16(sums[o][r], rows, w[i][o].words[k], w[i][o].words[k + 1]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int o = 0; o < kOutTiles; ++o) {
    if (o > 0) __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s_sums[warp][(r * 4 + e) * kWarpSize + lane] = sums[o][r][e];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRowTiles * kTileElements; i += kThreads) {
      const int of_lane = i % kWarpSize;
      const int e = i / kWarpSize % 4;
      const int row = first_row + i / kTileElements * kRowTile + e / 2 * 8 + of_lane / 4;
      const int out = first_out + o * kOutTile + of_lane % 4 * 2 + e % 2;
      if (row >= R || out >= X) continue;
      float sum = 0;
#pragma unroll
      for (int from = 0; from < kWarps; ++from) sum += s_sums[from][i];
      if (bias != nullptr) sum += bias[out];
      Out* to = y + row * y_stride + out;
      if (accumulate) sum += to_float(*to);
      *to = from_float<Out>(sum);
    }
  }
}

template <class Out, int kOutTiles, int kRowTiles, int kAhead>
void run(CudaDevice& device, const ops::LinearForward& args) {
  const int64_t R = args.x_RD.size(0);
  const int64_t X = args.weight_XD.size(0);
  const int64_t row_blocks = divide_up(R, kRowTiles * kRowTile);
  launch(device, "linear_rows_kernel", linear_rows_kernel<Out, kOutTiles, kRowTiles, kAhead>,
         divide_up(X, kOutTiles * kOutTile) * row_blocks, kThreads, 0,
         pointer<const Bf16>(args.x_RD), args.x_RD.stride(0), pointer<const Bf16>(args.weight_XD),
         args.weight_XD.stride(0), pointer<const float>(args.bias_X), pointer<Out>(args.y_RX),
         args.y_RX.stride(0), args.y_mode == ops::GradMode::kAccumulate, static_cast<int>(R),
         static_cast<int>(args.x_RD.size(1)), static_cast<int>(X), static_cast<int>(row_blocks));
}

// Outputs per block: as many blocks as there are multiprocessors where the weight has few rows, and
// where x has several, enough outputs that reading them again does not count. Long rows are loaded
// further ahead: there are few blocks then, and each has to keep more bytes under way. From 33 rows
// on there is enough of x for tiles that go through shared memory.
template <class Out>
void run_any(CudaDevice& device, const ops::LinearForward& args) {
  const int64_t R = args.x_RD.size(0);
  const int64_t X = args.weight_XD.size(0);
  constexpr int64_t kManyOutputs = 8192;
  constexpr int64_t kLongRow = 2048;
  if (R <= kRowTile) {
    if (X < kManyOutputs && args.x_RD.size(1) >= kLongRow) return run<Out, 1, 1, 8>(device, args);
    if (X < kManyOutputs) return run<Out, 1, 1, 4>(device, args);
    return run<Out, 2, 1, 4>(device, args);
  }
  if (R <= 2 * kRowTile) {
    if (X < kManyOutputs) return run<Out, 1, 2, 4>(device, args);
    return run<Out, 4, 2, 2>(device, args);
  }
  linear_tiles(device, args);
}

}  // namespace

bool linear_rows(CudaDevice& device, const ops::LinearForward& args) {
  const int64_t R = args.x_RD.size(0);
  const int64_t X = args.weight_XD.size(0);
  const int64_t D = args.x_RD.size(1);
  const bool is_few = R <= kMaxLinearRows || (R <= kMaxUniformRows && device.gemm().uniform_rows());
  if (!is_few || args.x_RD.dtype() != DType::kBF16 || D % kVector != 0 || D > INT_MAX / 2 ||
      X > INT_MAX / 2 || !all_aligned(args.x_RD, args.weight_XD)) {
    return false;
  }
  if (R == 0 || X == 0) return true;
  with_activation_type("linear_forward", args.y_RX.dtype(), [&](auto element) {
    run_any<typename decltype(element)::type>(device, args);
  });
  return true;
}

}  // namespace deltatrain::backend::cuda
