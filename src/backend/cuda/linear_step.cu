// Products of up to 16 rows, with the norm before them, and SwiGLU or the choice of the largest output after them.
//
// A step is a chain of such products, each too short for the device to come up to its rate. So there is one block
// per multiprocessor, small enough for those of the next kernels to stand beside it; blocks fetch weights before they
// wait for the kernel ahead (launch_early) and go on while they multiply; and they take along what the products need
// beside weights: the norm is made again by every block, which costs less than a kernel of its own.
#include "backend/cuda/linear_step.h"

#include <algorithm>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/largest.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/ptx_wrappers.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kVector = 8;          // elements of a 16-byte access
constexpr int kPart = 4 * kVector;  // columns of D that a warp takes at a time
constexpr int kChunk = 4;           // parts that a warp fetches together
constexpr int kOutTile = 8;         // outputs of one matrix instruction
constexpr int kMaxRows = 16;
// rms_norm sums longer rows in another order.
constexpr int kMaxNormColumns = 2048;
constexpr int kRowGap =
    kPart;  // between rows in shared memory, so that eight rows lie in different banks
// Rows that stay in shared memory: what 9.0 has for a block, and 8.6, beside the sums.
constexpr int64_t kMaxRowBytes = int64_t{100} << 10;
constexpr int64_t kFewRowBytes = int64_t{32} << 10;
constexpr size_t kSumBytes = size_t{24} << 10;  // more than the static shared memory

using Vector = Pack<Bf16, kVector>;

enum class After { kStore, kSwiglu, kLargest };

struct StepProduct {
  const Bf16* x;
  int64_t x_stride;
  const Bf16* residual;      // or null
  const float* norm_weight;  // null: x as it is
  Bf16* sum;                 // or null
  float eps;
  const Bf16* weight;
  const float* bias;  // or null
  void* y;
  int64_t y_stride;
  bool accumulate;
  Largest* candidates;  // kLargest: of each row and block
  int R, D, X, out_blocks;
};

// A row's factor of the norm, by one warp. Sums in the order of rms_norm_forward_held_kernel: kParts stretches of the
// row, as many as there are warps at a row there.
template <int kParts, int kHeld>
__device__ __forceinline__ float inverse_rms(const StepProduct& args, int row) {
  const int num_vectors = args.D / kVector;
  const Bf16* const x = args.x + row * args.x_stride;
  const Bf16* const residual =
      args.residual == nullptr ? nullptr : args.residual + static_cast<int64_t>(row) * args.D;
  float total = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    Vector in[kHeld];
    Vector extra[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = part * kWarpSize + lane_id() + j * kParts * kWarpSize;
      in[j].set_zero();
      extra[j].set_zero();
      if (i < num_vectors) {
        in[j] = load_pack<Bf16, kVector>(x + i * kVector);
        if (residual != nullptr) extra[j] = load_pack<Bf16, kVector>(residual + i * kVector);
      }
    }
    float sum_of_squares = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      float s[kVector];
      float other[kVector];
      in[j].unpack(s);
      extra[j].unpack(other);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        s[e] += other[e];
        sum_of_squares += s[e] * s[e];
      }
    }
    sum_of_squares = sum_over_lanes<kWarpSize>(sum_of_squares);
    total = part == 0 ? sum_of_squares : total + sum_of_squares;
  }
  return rsqrtf(total / static_cast<float>(args.D) + args.eps);
}

// y of 8 kHalves rows and 8 kOutTiles outputs at a time (kSwiglu: two tiles, of gates and of the ups beside them).
//
// Grid: any number of blocks, which take output blocks in turns; some may have none. Warps, lanes and the order of sums are those of
// linear_rows_kernel. Weights come through shared memory in chunks of kChunk parts per warp: each lane has places for
// kRing chunks, which it alone fills and reads, and keeps them under way, from before the wait on and across output
// blocks. Dynamic shared: the places, then the rows. Bytes: the weights once, rows once per block.
template <class Out, int kOutTiles, int kHalves, int kRing, After kAfter>
__global__ void __launch_bounds__(kThreads, 2) linear_step_kernel(const StepProduct args) {
  constexpr int kTileElements = kOutTile * 8 * kHalves;
  constexpr int kElements = kOutTiles * kTileElements;
  static_assert(kAfter != After::kSwiglu || kOutTiles == 2);
  static_assert(kElements <= kThreads);
  __shared__ float s_sums[2][kWarps][kElements];
  __shared__ float s_inverse_rms[kMaxRows];
  auto* const s_ring = dynamic_shared<Vector>();
  auto* const s_rows = reinterpret_cast<Bf16*>(s_ring + kRing * kChunk * kOutTiles * kThreads);
  const int pitch = args.D + kRowGap;
  const int lane = lane_id();
  const int warp = warp_id();
  const int thread = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  const int t = lane % 4;
  const int outputs = kAfter == After::kSwiglu ? args.X / 2 : args.X;
  constexpr int kStride = kWarps * kPart;  // columns from a part to the next of the same warp
  const int num_chunks = (args.D + kStride * kChunk - 1) / (kStride * kChunk);
  const int first_column = warp * kPart + t * kVector;

  const auto first_output = [&](int block, int tile) {
    return kAfter == After::kSwiglu ? block * kOutTile : (block * kOutTiles + tile) * kOutTile;
  };
  const auto place_of = [&](int place, int i, int o) {
    return s_ring + ((place * kChunk + i) * kOutTiles + o) * kThreads + thread;
  };
  // The chunk that is fetched next.
  int fetch_block = static_cast<int>(blockIdx.x);
  int fetch_chunk = 0;
  const auto fetch = [&](int place) {
    if (fetch_block < args.out_blocks) {
      const int column = first_column + fetch_chunk * kChunk * kStride;
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o) {
        const int out = first_output(fetch_block, o) + g;
        const int64_t row = kAfter == After::kSwiglu ? out + o * outputs : out;
        const Bf16* const from = args.weight + row * args.D + column;
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          const bool valid = out < outputs && column + i * kStride < args.D;
          copy_async_16(place_of(place, i, o), valid ? from + i * kStride : args.weight, valid);
        }
      }
    }
    copy_async_commit();
    if (++fetch_chunk == num_chunks) {
      fetch_chunk = 0;
      fetch_block += static_cast<int>(gridDim.x);
    }
  };
  // One chunk after the other: what the kernel ahead still has to read would queue up behind them.
  fetch(0);
  let_next_kernel_begin();
#pragma unroll
  for (int i = 1; i < kRing; ++i) {
    copy_async_wait<0>();
    fetch(i);
  }
  constexpr int kNormVector = 4;
  constexpr int kNormHeld = kMaxNormColumns / (kThreads * kNormVector);
  float norm_weight[kNormHeld][kNormVector] = {};
  if (args.norm_weight != nullptr) {
#pragma unroll
    for (int j = 0; j < kNormHeld; ++j) {
      const int column = (thread + j * kThreads) * kNormVector;
      if (column < args.D)
        load_values<float, kNormVector>(args.norm_weight + column, norm_weight[j]);
    }
  }
  wait_for_kernels_ahead();
  if (static_cast<int>(blockIdx.x) >= args.out_blocks) return;

  if (args.norm_weight != nullptr) {
    for (int row = warp; row < args.R; row += kWarps) {
      s_inverse_rms[row] = args.D <= kMaxNormColumns / 2 ? inverse_rms<1, 4>(args, row)
                                                         : inverse_rms<4, 2>(args, row);
    }
    __syncthreads();
    for (int row = 0; row < args.R; ++row) {
      const int64_t at_row = static_cast<int64_t>(row) * args.D;
#pragma unroll
      for (int j = 0; j < kNormHeld; ++j) {
        const int column = (thread + j * kThreads) * kNormVector;
        if (column >= args.D) continue;
        float s[kNormVector];
        load_values<Bf16, kNormVector>(args.x + row * args.x_stride + column, s);
        if (args.residual != nullptr) {
          float other[kNormVector];
          load_values<Bf16, kNormVector>(args.residual + at_row + column, other);
#pragma unroll
          for (int e = 0; e < kNormVector; ++e) s[e] += other[e];
        }
        if (args.sum != nullptr && blockIdx.x == 0) store_values(args.sum + at_row + column, s);
#pragma unroll
        for (int e = 0; e < kNormVector; ++e) s[e] = s[e] * s_inverse_rms[row] * norm_weight[j][e];
        store_values(s_rows + row * pitch + column, s);
      }
    }
  } else {
    const int vectors = args.D / kVector;
    for (int i = thread; i < args.R * vectors; i += kThreads) {
      const int row = i / vectors;
      const int column = (i - row * vectors) * kVector;
      store_pack(s_rows + row * pitch + column,
                 load_pack<Bf16, kVector>(args.x + row * args.x_stride + column));
    }
  }
  __syncthreads();

  // The element of a block's outputs that this thread finishes.
  const int tile = thread / kTileElements;
  const int e_of_thread = thread % kTileElements / kWarpSize;
  const int row = e_of_thread / 2 * 8 + thread % kWarpSize / 4;
  const int out_in_tile = thread % 4 * 2 + e_of_thread % 2;
  Largest best = {-INFINITY, 0};
  int place = 0;
  int turn = 0;
  for (int block = static_cast<int>(blockIdx.x); block < args.out_blocks;
       block += static_cast<int>(gridDim.x), turn ^= 1) {
    float sums[kOutTiles][4] = {};
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      copy_async_wait<kRing - 1>();
      Vector a[kChunk][kHalves];
      Vector w[kChunk][kOutTiles];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const int column = first_column + (chunk * kChunk + i) * kStride;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          a[i][half].set_zero();
          const int x_row = half * 8 + g;
          if (x_row < args.R && column < args.D)
            a[i][half] = load_pack<Bf16, kVector>(s_rows + x_row * pitch + column);
        }
#pragma unroll
        for (int o = 0; o < kOutTiles; ++o) w[i][o] = *place_of(place, i, o);
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          const uint32_t rows[4] = {a[i][0].words[k], kHalves > 1 ? a[i][kHalves - 1].words[k] : 0U,
                                    a[i][0].words[k + 1],
                                    kHalves > 1 ? a[i][kHalves - 1].words[k + 1] : 0U};
#pragma unroll
          for (int o = 0; o < kOutTiles; ++o)
            mma_16x8x16_bf16(sums[o], rows, w[i][o].words[k], w[i][o].words[k + 1]);
        }
      }
      fetch(place);
      place = place + 1 == kRing ? 0 : place + 1;
    }

    float(&s_block)[kWarps][kElements] = s_sums[turn];
#pragma unroll
    for (int o = 0; o < kOutTiles; ++o) {
#pragma unroll
      for (int e = 0; e < 2 * kHalves; ++e)
        s_block[warp][o * kTileElements + e * kWarpSize + lane] = sums[o][e];
    }
    __syncthreads();  // and the block before the last is done with its half
    const int out = first_output(block, tile) + out_in_tile;
    if (thread < kElements && row < args.R && out < outputs) {
      float sum = 0;
#pragma unroll
      for (int from = 0; from < kWarps; ++from) sum += s_block[from][thread];
      Out* const to = static_cast<Out*>(args.y) + row * args.y_stride + out;
      if constexpr (kAfter == After::kSwiglu) {
        if (tile == 0) {
          float up = 0;
#pragma unroll
          for (int from = 0; from < kWarps; ++from) up += s_block[from][thread + kTileElements];
          const float gate = to_float(from_float<Bf16>(sum));
          *to = from_float<Out>(gate * (sigmoid<Bf16>(gate) * to_float(from_float<Bf16>(up))));
        }
      } else {
        if (args.bias != nullptr) sum += args.bias[out];
        if (args.accumulate) sum += to_float(*to);
        const Out result = from_float<Out>(sum);
        *to = result;
        if constexpr (kAfter == After::kLargest) best = larger(best, {to_float(result), out});
      }
    }
  }

  if constexpr (kAfter == After::kLargest) {
    __shared__ Largest s_best[kElements];
    if (thread < kElements) s_best[thread] = best;
    __syncthreads();
    // Thread r looks at the elements of row r: its lanes of one e per half, both columns of each tile.
    if (thread < args.R) {
      best = {-INFINITY, 0};
      for (int o = 0; o < kOutTiles; ++o) {
        for (int c = 0; c < kOutTile; ++c) {
          const int e = thread / 8 * 2 + c % 2;
          const int at = o * kTileElements + e * kWarpSize + thread % 8 * 4 + c / 2;
          best = larger(best, s_best[at]);
        }
      }
      const int with_outputs = min(static_cast<int>(gridDim.x), args.out_blocks);
      args.candidates[thread * with_outputs + static_cast<int>(blockIdx.x)] = best;
    }
  }
}

// Grid: one block per row.
__global__ void __launch_bounds__(kThreads)
    linear_step_choose_kernel(const Largest* candidates, int count, int32_t* index) {
  __shared__ Largest s_best[kWarps];
  let_next_kernel_begin();
  wait_for_kernels_ahead();
  Largest best = {-INFINITY, 0};
  const Largest* const of_row = candidates + static_cast<int64_t>(blockIdx.x) * count;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
    best = larger(best, of_row[i]);
  best = largest_over_block<kThreads>(best, s_best);
  if (threadIdx.x == 0) index[blockIdx.x] = index_or_none(best);
}

// One block on every multiprocessor, whether it has outputs or not: where kernels that stand side by side fill the device
// unevenly, two blocks of the next may come to one multiprocessor, and take twice as long.
template <class Out, int kOutTiles, int kHalves, int kRing, After kAfter>
int64_t run(CudaDevice& device, StepProduct args) {
  const int outputs = kAfter == After::kSwiglu ? args.X / 2 : args.X;
  constexpr int kOutputs = kAfter == After::kSwiglu ? kOutTile : kOutTiles * kOutTile;
  args.out_blocks = static_cast<int>(divide_up(outputs, kOutputs));
  const auto shared_bytes =
      sizeof(Vector) * kRing * kChunk * kOutTiles * kThreads +
      static_cast<size_t>(args.R) * static_cast<size_t>(args.D + kRowGap) * sizeof(Bf16);
  constexpr auto kernel = linear_step_kernel<Out, kOutTiles, kHalves, kRing, kAfter>;
  allow_shared_bytes(kernel, shared_bytes + kSumBytes);
  prefer_shared_memory(kernel);
  const int64_t grid = device.num_multiprocessors();
  launch_early(device, "linear_step_kernel", kernel, grid, kThreads, shared_bytes, args);
  return std::min<int64_t>(grid, args.out_blocks);
}

// Places for weights leave shared memory for the kernels before and behind, which fetch while this one waits. Devices
// before 9.0, where none does, have less of it.
template <class Out, int kHalves, After kAfter>
int64_t run_any(CudaDevice& device, const StepProduct& args) {
  constexpr int kManyOutputs = 8192;
  const bool has_room = device.compute_capability() >= 90;
  if constexpr (kAfter == After::kStore) {
    if (args.X < kManyOutputs) {
      const int64_t chunks = divide_up(args.D, kPart * kWarps * kChunk) *
                             divide_up(divide_up(args.X, kOutTile), device.num_multiprocessors());
      if (chunks == 1 || !has_room) return run<Out, 1, kHalves, 1, kAfter>(device, args);
      if (chunks == 2) return run<Out, 1, kHalves, 2, kAfter>(device, args);
      return run<Out, 1, kHalves, 3, kAfter>(device, args);
    }
  }
  return has_room ? run<Out, 2, kHalves, 3, kAfter>(device, args)
                  : run<Out, 2, kHalves, 1, kAfter>(device, args);
}

template <class Out, After kAfter>
int64_t run_rows(CudaDevice& device, const StepProduct& args) {
  return args.R <= kMaxRows / 2 ? run_any<Out, 1, kAfter>(device, args)
                                : run_any<Out, 2, kAfter>(device, args);
}

bool fits(const CudaDevice& device, const Tensor& x_RD, const Tensor& weight_XD) {
  const int64_t R = x_RD.size(0);
  const int64_t D = x_RD.size(1);
  const int64_t X = weight_XD.size(0);
  return R > 0 && R <= kMaxRows && x_RD.dtype() == DType::kBF16 && D % kVector == 0 && X > 0 &&
         X <= INT_MAX / 2 && weight_XD.stride(0) == D &&
         R * (D + kRowGap) * 2 <=
             (device.compute_capability() >= 90 ? kMaxRowBytes : kFewRowBytes) &&
         all_aligned(x_RD, weight_XD);
}

StepProduct product_of(const Tensor& x_RD, const Tensor& weight_XD, const Tensor& y_RX) {
  StepProduct product{};
  product.x = pointer<const Bf16>(x_RD);
  product.x_stride = x_RD.stride(0);
  product.weight = pointer<const Bf16>(weight_XD);
  product.y = y_RX.raw();
  product.y_stride = y_RX.stride(0);
  product.R = static_cast<int>(x_RD.size(0));
  product.D = static_cast<int>(x_RD.size(1));
  product.X = static_cast<int>(weight_XD.size(0));
  return product;
}

}  // namespace

bool linear_step(CudaDevice& device, const ops::LinearForward& args) {
  if (!fits(device, args.x_RD, args.weight_XD)) return false;
  StepProduct product = product_of(args.x_RD, args.weight_XD, args.y_RX);
  product.bias = pointer<const float>(args.bias_X);
  product.accumulate = args.y_mode == ops::GradMode::kAccumulate;
  with_activation_type("linear_forward", args.y_RX.dtype(), [&](auto element) {
    run_rows<typename decltype(element)::type, After::kStore>(device, product);
  });
  return true;
}

bool norm_linear(const Context& context, const ops::NormLinear& args, const Tensor& workspace) {
  CudaDevice& device = cuda_device(context);
  if (!fits(device, args.x_RD, args.weight_XD) || args.x_RD.size(1) > kMaxNormColumns ||
      !all_aligned(args.residual_RD, args.norm_weight_D, args.sum_RD)) {
    return false;
  }
  StepProduct product = product_of(args.x_RD, args.weight_XD, args.y_RX);
  product.residual = pointer<const Bf16>(args.residual_RD);
  product.norm_weight = pointer<const float>(args.norm_weight_D);
  product.sum = pointer<Bf16>(args.sum_RD);
  product.eps = static_cast<float>(args.eps);
  if (args.activation == ops::NormLinear::Activation::kSwiglu) {
    if (args.index_R.defined()) return false;
    run_rows<Bf16, After::kSwiglu>(device, product);
    return true;
  }
  if (!args.index_R.defined()) {
    run_rows<Bf16, After::kStore>(device, product);
    return true;
  }
  const int64_t most = workspace.num_bytes() / product.R / static_cast<int64_t>(sizeof(Largest));
  if (device.num_multiprocessors() > most) return false;
  product.candidates = reinterpret_cast<Largest*>(workspace.raw());
  const int64_t count = run_rows<Bf16, After::kLargest>(device, product);
  launch_early(device, "linear_step_choose_kernel", linear_step_choose_kernel, product.R, kThreads,
               0, static_cast<const Largest*>(product.candidates), static_cast<int>(count),
               pointer<int32_t>(args.index_R));
  return true;
}

}  // namespace deltatrain::backend::cuda
