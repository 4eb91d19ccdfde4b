#include "backend/cuda/linear_tiles.h"

#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kVector = 8;          // elements of a 16-byte access
constexpr int kPart = 4 * kVector;  // columns of D that are taken at a time
constexpr int kSums = 8;            // sums that make an element of y, one per warp of linear_rows
constexpr int kStages = 6;          // parts under way or in use

using Vector = Pack<Bf16, kVector>;

struct TileProduct {
  const Bf16* x;
  int64_t x_stride;
  const Bf16* weight;
  int64_t weight_stride;
  const float* bias;  // or null
  void* y;
  int64_t y_stride;
  bool accumulate;
  int R, D, X, row_blocks;
};

// y of kRows rows and kOuts outputs, by kRowWarps x (8 / kRowWarps) warps.
//
// Grid: output blocks x row blocks, row blocks first. An element of y is the sum of eight sums, of the parts of D with
// numbers w, w + 8, ... each, as the warps of linear_rows_kernel make them; here they are made one after the other, parts
// going through shared memory. Lanes hold in a part what they hold there, so the matrix instructions get the same
// operands. Dynamic shared: kStages parts of the rows and of the weights. Bytes: weights once per row block, rows once
// per output block.
template <class Out, int kRows, int kOuts, int kRowWarps>
__global__ void __launch_bounds__(kThreads) linear_tiles_kernel(const TileProduct args) {
  constexpr int kRowTiles = kRows / kRowWarps / 16;            // of a warp
  constexpr int kOutTiles = kOuts / (kWarps / kRowWarps) / 8;  // of a warp
  constexpr int kStage = (kRows + kOuts) * kPart;              // elements
  constexpr int kVectors = kStage / kVector;                   // of a part
  auto* const s_parts = dynamic_shared<Bf16>();
  const int out_block = static_cast<int>(blockIdx.x) / args.row_blocks;
  const int first_out = out_block * kOuts;
  const int first_row = (static_cast<int>(blockIdx.x) - out_block * args.row_blocks) * kRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int g = lane_id() / 4;
  const int t = lane_id() % 4;
  const int warp_row = warp_id() % kRowWarps * kRowTiles * 16;
  const int warp_out = warp_id() / kRowWarps * kOutTiles * 8;
  const int num_parts = (args.D + kPart - 1) / kPart;

  // Part number `index` in the order in which they are added: of every sum in turn.
  int fetch_sum = 0;
  int fetch_part = 0;
  const auto fetch = [&](int stage) {
    while (fetch_part >= num_parts && fetch_sum + 1 < kSums) fetch_part = ++fetch_sum;
    if (fetch_part < num_parts) {
#pragma unroll
      for (int i = 0; i < (kVectors + kThreads - 1) / kThreads; ++i) {
        const int at = i * kThreads + thread;
        if (at >= kVectors) break;
        const int line = at / (kPart / kVector);
        const int column = fetch_part * kPart + at % (kPart / kVector) * kVector;
        const bool is_row = line < kRows;
        const int index = is_row ? first_row + line : first_out + line - kRows;
        const bool valid = column < args.D && index < (is_row ? args.R : args.X);
        const Bf16* const from = is_row ? args.x + index * args.x_stride + column
                                        : args.weight + index * args.weight_stride + column;
        copy_async_16(s_parts + stage * kStage + at * kVector, valid ? from : args.weight, valid);
      }
      fetch_part += kSums;
    }
    copy_async_commit();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);

  float total[kOutTiles][kRowTiles][4] = {};
  int stage = 0;
  for (int sum = 0; sum < kSums; ++sum) {
    float sums[kOutTiles][kRowTiles][4] = {};
    for (int part = sum; part < num_parts; part += kSums) {
      copy_async_wait<kStages - 2>();
      __syncthreads();  // the part is there, and the stage before it has been read by all
      fetch(stage == 0 ? kStages - 1 : stage - 1);
      const Bf16* const rows = s_parts + stage * kStage;
      const Bf16* const weights = rows + kRows * kPart;
      Vector a[kRowTiles][2];
      Vector w[kOutTiles];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          a[r][half] = load_pack<Bf16, kVector>(rows + (warp_row + r * 16 + half * 8 + g) * kPart +
                                                t * kVector);
      }
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o)
        w[o] = load_pack<Bf16, kVector>(weights + (warp_out + o * 8 + g) * kPart + t * kVector);
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint32_t operands[4] = {a[r][0].words[k], a[r][1].words[k], a[r][0].words[k + 1],
                                        a[r][1].words[k + 1]};
#pragma unroll
          for (int o = 0; o < kOutTiles; ++o)
            mma_16x8x16_bf16(sums[o][r], operands, w[o].words[k], w[o].words[k + 1]);
        }
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
#pragma unroll
    for (int o = 0; o < kOutTiles; ++o) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) total[o][r][e] += sums[o][r][e];
      }
    }
  }
  copy_async_wait<0>();

#pragma unroll
  for (int o = 0; o < kOutTiles; ++o) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + warp_row + r * 16 + e / 2 * 8 + g;
        const int out = first_out + warp_out + o * 8 + t * 2 + e % 2;
        if (row >= args.R || out >= args.X) continue;
        float y = total[o][r][e];
        if (args.bias != nullptr) y += args.bias[out];
        Out* const to = static_cast<Out*>(args.y) + row * args.y_stride + out;
        if (args.accumulate) y += to_float(*to);
        *to = from_float<Out>(y);
      }
    }
  }
}

template <class Out, int kRows, int kOuts, int kRowWarps>
void run(CudaDevice& device, TileProduct args) {
  args.row_blocks = static_cast<int>(divide_up(args.R, kRows));
  constexpr size_t kSharedBytes = sizeof(Bf16) * kStages * (kRows + kOuts) * kPart;
  constexpr auto kernel = linear_tiles_kernel<Out, kRows, kOuts, kRowWarps>;
  allow_shared_bytes(kernel, kSharedBytes);
  launch(device, "linear_tiles_kernel", kernel, divide_up(args.X, kOuts) * args.row_blocks,
         kThreads, kSharedBytes, args);
}

// The larger a tile, the less is read twice; three quarters of the multiprocessors are to have one.
template <class Out>
void run_any(CudaDevice& device, const TileProduct& args) {
  const auto fills_device = [&](int64_t rows, int64_t outs) {
    return divide_up(args.R, rows) * divide_up(args.X, outs) * 4 >=
           3 * int64_t{device.num_multiprocessors()};
  };
  if (args.R > 64 && fills_device(128, 128)) return run<Out, 128, 128, 2>(device, args);
  if (fills_device(64, 64)) return run<Out, 64, 64, 2>(device, args);
  return run<Out, 64, 32, 4>(device, args);
}

}  // namespace

void linear_tiles(CudaDevice& device, const ops::LinearForward& args) {
  TileProduct product{};
  product.x = pointer<const Bf16>(args.x_RD);
  product.x_stride = args.x_RD.stride(0);
  product.weight = pointer<const Bf16>(args.weight_XD);
  product.weight_stride = args.weight_XD.stride(0);
  product.bias = pointer<const float>(args.bias_X);
  product.y = args.y_RX.raw();
  product.y_stride = args.y_RX.stride(0);
  product.accumulate = args.y_mode == ops::GradMode::kAccumulate;
  product.R = static_cast<int>(args.x_RD.size(0));
  product.D = static_cast<int>(args.x_RD.size(1));
  product.X = static_cast<int>(args.weight_XD.size(0));
  with_activation_type("linear_forward", args.y_RX.dtype(), [&](auto element) {
    run_any<typename decltype(element)::type>(device, product);
  });
}

}  // namespace deltatrain::backend::cuda
