#include <algorithm>

#include "backend/cuda/hopper/attention_groups.cuh"
#include "backend/cuda/hopper/hopper_kernels.h"

namespace deltatrain::backend::cuda {

namespace hopper {
namespace {

constexpr int kGroups = 3;  // of four warps; each owns a tile of keys
constexpr int kThreads = kGroups * kWarpsPerGroup * kWarpSize;
constexpr int kBuffers = 2;

struct Shared {
  Bf16 k[kBuffers][kGroups][kTileElements];
  Bf16 v[kBuffers][kGroups][kTileElements];
  Bf16 q[kBuffers][kTileElements];
  Bf16 d_o[kBuffers][kTileElements];
  Bf16 ds[kGroups][kGroups][kTileElements];  // of up to kGroups steps; rows are keys
  float lse[kBuffers][kTile];
  float delta[kBuffers][kTile];
};
constexpr size_t kSharedBytes = sizeof(Shared) + kTileAlignment;

struct Arguments {
  const Bf16* d_o;
  const Bf16* q;
  const Bf16* k;
  const Bf16* v;
  const float* lse;
  const float* delta;
  float* dq_sum;  // [R, H, kWidth]
  Bf16* dq;
  Bf16* dk;
  Bf16* dv;
  int64_t v_row_stride;
  int64_t v_head_stride;
  int64_t dv_row_stride;
  int64_t dv_head_stride;
  const int32_t* offsets;
  int num_items;  // sequences x heads
  int H;
  int K;
  int V;
  float scale;
  float scale_log2;
};

// A tile of queries against a block of kGroups tiles of keys. A block of threads walks over its
// items; within an item over the key blocks; within one over the tiles of queries from the first
// that sees its keys.
struct Step {
  int item;
  int begin;  // of the sequence
  int length;
  int head;
  int key_block;
  int tile;

  __device__ __forceinline__ bool start(const Arguments& args, int first_item) {
    item = first_item;
    key_block = 0;
    tile = 0;
    for (; item < args.num_items; item += static_cast<int>(gridDim.x)) {
      const int s = item / args.H;
      head = item - s * args.H;
      begin = args.offsets[s];
      length = args.offsets[s + 1] - begin;
      if (length > 0) return true;
    }
    return false;
  }
  // False after the last step; the values stay then.
  __device__ __forceinline__ bool advance(const Arguments& args) {
    if ((tile + 1) * kTile < length) {
      ++tile;
      return true;
    }
    if ((key_block + 1) * kGroups * kTile < length) {
      ++key_block;
      tile = key_block * kGroups;
      return true;
    }
    Step next{};
    if (!next.start(args, item + static_cast<int>(gridDim.x))) return false;
    *this = next;
    return true;
  }
  __device__ __forceinline__ bool same_keys(const Step& other) const {
    return item == other.item && key_block == other.key_block;
  }
};

// Where a thread finds its part of the tiles of queries and their gradients: 16 bytes of row `row`,
// and of one of the last rows, which the threads do not share out evenly.
class QueryFetch {
 public:
  __device__ __forceinline__ explicit QueryFetch(const Arguments& args)
      : row_(static_cast<int>(threadIdx.x) / kChunks),
        chunk_(static_cast<int>(threadIdx.x) % kChunks) {
    q_stride_ = args.H * args.K;
    do_stride_ = args.H * args.V;
  }

  // To be called when the step's item is a new one.
  __device__ __forceinline__ void point_to(const Arguments& args, const Step& step) {
    const int64_t row = step.begin + row_;
    q_ = args.q + step.head * args.K + row * q_stride_ + chunk_ * kChunk;
    do_ = args.d_o + step.head * args.V + row * do_stride_ + chunk_ * kChunk;
  }

  __device__ __forceinline__ void start(const Arguments& args, const Step& step, Shared& s,
                                        int buffer) const {
    const int t = static_cast<int>(threadIdx.x);
    const int row = step.tile * kTile + row_;
    const int64_t first = step.tile * kTile;
    Bf16* const s_q = chunk_address<kWidth>(s.q[buffer], row_, chunk_);
    Bf16* const s_do = chunk_address<kWidth>(s.d_o[buffer], row_, chunk_);
    const bool in_q = chunk_ * kChunk < args.K;
    const bool in_do = chunk_ * kChunk < args.V;
    copy(s_q, q_ + first * q_stride_, args.q, in_q && row < step.length);
    copy(s_do, do_ + first * do_stride_, args.d_o, in_do && row < step.length);
    // kRest rows are left: the first threads take those of q, the last those of do.
    if (t < kRest * kChunks) {
      copy(s_q + kRowsAtOnce * kWidth, q_ + (first + kRowsAtOnce) * q_stride_, args.q,
           in_q && row + kRowsAtOnce < step.length);
    } else if (t >= kThreads - kRest * kChunks) {
      copy(s_do + kRest * kWidth, do_ + (first + kRest) * do_stride_, args.d_o,
           in_do && row + kRest < step.length);
    } else {
      const int i = t - kRest * kChunks;
      const int query = step.tile * kTile + i % kTile;
      const float* const from = i < kTile ? args.lse : args.delta;
      float* const to = i < kTile ? s.lse[buffer] : s.delta[buffer];
      const bool valid = query < step.length;
      // Rows past the end are zeros throughout, and so is what they add.
      copy_async_4(
          to + i % kTile,
          from + (valid ? static_cast<int64_t>(step.begin + query) * args.H + step.head : 0),
          valid);
    }
  }

 private:
  static constexpr int kChunks = kWidth / kChunk;
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  static constexpr int kRest = kTile - kRowsAtOnce;
  // The swizzle of a row repeats every eight.
  static_assert(kRowsAtOnce % 8 == 0 && kRest % 8 == 0 &&
                kThreads - 2 * kRest * kChunks == 2 * kTile);

  __device__ __forceinline__ static void copy(Bf16* to, const Bf16* from, const Bf16* anywhere,
                                              bool valid) {
    copy_async_16(to, valid ? from : anywhere, valid);
  }

  int row_;
  int chunk_;
  int q_stride_;
  int do_stride_;
  const Bf16* q_ = nullptr;
  const Bf16* do_ = nullptr;
};

__device__ __forceinline__ void fetch_keys(const Arguments& args, const Step& step, Shared& s,
                                           int buffer) {
  constexpr int kRows = kGroups * kTile;
  const int first = step.begin + step.key_block * kRows;
  const int end = step.begin + step.length;
  copy_rows<kRows, kThreads>(s.k[buffer][0], args.k + step.head * args.K, int64_t{args.H} * args.K,
                             first, end, args.K);
  copy_rows<kRows, kThreads>(s.v[buffer][0], args.v + step.head * args.v_head_stride,
                             args.v_row_stride, first, end, args.V);
}

// The sums that add_query_gradient will read, two rows of two lines for four lanes.
__device__ __forceinline__ void prefetch_query_gradient(const Arguments& args, const Step& step,
                                                        int tile) {
  const int lane = lane_id();
  const int row =
      step.begin + tile * kTile + warp_id() % kWarpsPerGroup * 16 + lane / 4 + lane % 4 / 2 * 8;
  if (step.key_block > 0 && row < step.begin + step.length)
    prefetch_line(args.dq_sum + (static_cast<int64_t>(row) * args.H + step.head) * kWidth +
                  lane % 2 * (kWidth / 2));
}

// dq of a tile of queries from its ds: added to what earlier key blocks left, and finished after
// the last.
__device__ __forceinline__ void add_query_gradient(const Arguments& args, const Step& step,
                                                   int tile_of_queries, Shared& s, int ds_buffer,
                                                   int k_buffer) {
  const bool is_first = step.key_block == 0;
  const bool is_last = step.key_block == tile_of_queries / kGroups;
  const int row =
      step.begin + tile_of_queries * kTile + warp_id() % kWarpsPerGroup * 16 + lane_id() / 4;
  const int end = step.begin + step.length;
  float* const sums =
      args.dq_sum + (static_cast<int64_t>(row) * args.H + step.head) * kWidth + lane_id() % 4 * 2;
  const int64_t eight_rows = int64_t{8} * args.H * kWidth;
  float dq[32] = {};
  if (!is_first) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= end) continue;
        const float2 pair = *reinterpret_cast<const float2*>(sums + half * eight_rows + j * 8);
        dq[4 * j + 2 * half] = pair.x;
        dq[4 * j + 2 * half + 1] = pair.y;
      }
    }
  }
  begin_products();
#pragma unroll
  for (int tile = 0; tile < kGroups; ++tile) {
    const uint64_t ds = describe_tile(s.ds[ds_buffer][tile]);
    const uint64_t k = describe_tile(s.k[k_buffer][tile]);
#pragma unroll
    for (int k16 = 0; k16 < 4; ++k16)
      product_64x64x16<true, true>(dq, ds + k16 * kNextRows, k + k16 * kNextRows, true);
  }
  commit_products();
  wait_products<0>();
  settle(dq);
  if (is_last) {
    store_rows(dq, args.scale, args.dq + step.head * args.K, int64_t{args.H} * args.K, row, end,
               args.K);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= end) continue;
      *reinterpret_cast<float2*>(sums + half * eight_rows + j * 8) =
          make_float2(dq[4 * j + 2 * half], dq[4 * j + 2 * half + 1]);
    }
  }
}

// Grid: as many blocks as run at once. A block takes whole sequences of a head; a group of four
// warps owns 64 keys with their dk and dv in registers, the queries that see them stream past in
// tiles of 64. Scores are computed transposed, keys by queries, so that they are the left operand
// of the two products that follow without leaving registers. ds also goes to shared memory; after
// every kGroups steps each group makes dq of one of them, which so needs no second look at the
// scores: it is summed over key blocks in memory, by the same thread in the same order each time.
__global__ void __launch_bounds__(kThreads, 1)
    causal_attention_backward_groups_kernel(Arguments args) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  Shared& s = aligned_shared<Shared>();
  const int group = same_in_warp(warp_id() / kWarpsPerGroup);
  const int lane = lane_id();
  const int own_key =
      warp_id() % kWarpsPerGroup * 16 + lane / 4;  // the lane's first key, within the group's tile

  Step now{};
  if (!now.start(args, static_cast<int>(blockIdx.x))) return;
  int key_buffer = 0;
  int buffer = 0;   // of queries
  int waiting = 0;  // steps whose ds has not gone into dq
  QueryFetch queries(args);
  queries.point_to(args, now);
  fetch_keys(args, now, s, 0);
  queries.start(args, now, s, 0);
  copy_async_commit();

  float dk[32] = {};
  float dv[32] = {};
  bool more = true;
#pragma unroll 1
  while (more) {
    copy_async_wait<0>();
    publish_tiles();
    __syncthreads();
    Step next = now;
    more = next.advance(args);
    const bool last_of_keys = !more || !next.same_keys(now);
    if (more) {
      if (next.item != now.item) queries.point_to(args, next);
      queries.start(args, next, s, buffer ^ 1);
      if (last_of_keys) fetch_keys(args, next, s, key_buffer ^ 1);
    }
    copy_async_commit();
    const bool makes_dq = last_of_keys || waiting == kGroups - 1;
    const int dq_tile = now.tile - waiting + group;
    if (makes_dq && group <= waiting) prefetch_query_gradient(args, now, dq_tile);

    const int key_tile = now.key_block * kGroups + group;
    if (now.tile >= key_tile) {
      const uint64_t k = describe_tile(s.k[key_buffer][group]);
      const uint64_t v = describe_tile(s.v[key_buffer][group]);
      const uint64_t q = describe_tile(s.q[buffer]);
      const uint64_t d_o = describe_tile(s.d_o[buffer]);
      float p[32];
      float dp[32];
      begin_products();
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16)
        product_64x64x16<false, false>(p, k + k16 * kNextInRow, q + k16 * kNextInRow, k16 > 0);
      commit_products();
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16)
        product_64x64x16<false, false>(dp, v + k16 * kNextInRow, d_o + k16 * kNextInRow, k16 > 0);
      commit_products();
      wait_products<1>();
      settle(p);
      const bool diagonal = now.tile == key_tile;
      const float* const lse = s.lse[buffer] + lane % 4 * 2;
      const float* const delta = s.delta[buffer] + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 pair = *reinterpret_cast<const float2*>(lse + j * 8);
        const float lse_log2[2] = {pair.x * kLog2e, pair.y * kLog2e};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float weight = exp2_approximate(fmaf(p[4 * j + e], args.scale_log2, -lse_log2[e % 2]));
          if (diagonal && own_key + e / 2 * 8 > j * 8 + lane % 4 * 2 + e % 2) weight = 0;
          p[4 * j + e] = weight;
        }
      }
      uint32_t left[4][4];
      pack_result(left, p);
      begin_products();
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16)
        product_64x64x16<true>(dv, left[k16], d_o + k16 * kNextRows, true);
      commit_products();
      wait_products<1>();
      settle(dp);
      // ds = p (v do - delta), with the p that dv was made from.
      uint32_t ds[4][4];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 pair = *reinterpret_cast<const float2*>(delta + j * 8);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t weights = left[j / 2][j % 2 * 2 + half];
          ds[j / 2][j % 2 * 2 + half] = pack_bf16(
              __uint_as_float(weights << 16) * (dp[4 * j + 2 * half] - pair.x),
              __uint_as_float(weights & 0xffff0000U) * (dp[4 * j + 2 * half + 1] - pair.y));
        }
      }
      Bf16* const s_ds = s.ds[waiting][group];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<uint32_t*>(chunk_address<kWidth>(s_ds, own_key + 8 * half, j) +
                                       lane % 4 * 2) = ds[j / 2][j % 2 * 2 + half];
        }
      }
      begin_products();
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16)
        product_64x64x16<true>(dk, ds[k16], q + k16 * kNextRows, true);
      commit_products();
      wait_products<0>();
      settle(dk);
      settle(dv);
    } else {
      // Keys after all of the queries: nothing for dq either.
      Pack<Bf16, kChunk> zeros;
      zeros.set_zero();
      for (int i = static_cast<int>(threadIdx.x) % (kWarpsPerGroup * kWarpSize);
           i < kTileElements / kChunk; i += kWarpsPerGroup * kWarpSize)
        store_pack(s.ds[waiting][group] + i * kChunk, zeros);
    }
    if (makes_dq) {
      publish_tiles();
      __syncthreads();
      if (group <= waiting) add_query_gradient(args, now, dq_tile, s, group, key_buffer);
    }
    waiting = makes_dq ? 0 : waiting + 1;
    if (last_of_keys && key_tile * kTile < now.length) {
      const int row = now.begin + key_tile * kTile + own_key;
      const int end = now.begin + now.length;
      store_rows(dk, args.scale, args.dk + now.head * args.K, int64_t{args.H} * args.K, row, end,
                 args.K);
      store_rows(dv, 1.0F, args.dv + now.head * args.dv_head_stride, args.dv_row_stride, row, end,
                 args.V);
#pragma unroll
      for (int i = 0; i < 32; ++i) dk[i] = dv[i] = 0;
    }
    buffer ^= 1;
    if (last_of_keys) key_buffer ^= 1;
    now = next;
  }
#endif
}

// A block takes whole sequences, so they must be many enough, and none much longer than the rest
// together.
bool fills_device(const ops::Sequences& sequences, int64_t H, int num_blocks) {
  double total = 0;
  double longest = 0;
  for (int64_t i = 0; i < sequences.num(); ++i) {
    const auto length = static_cast<double>(sequences.length(i));
    total += length * length;
    longest = std::max(longest, length * length);
  }
  return 4 * total * static_cast<double>(H) >= 3 * longest * num_blocks;
}

}  // namespace
}  // namespace hopper

bool attention_backward_groups(CudaDevice& device, const ops::CausalAttentionBackward& args,
                               const Tensor& delta_RH, const Tensor& dq_sum_RHX) {
  using hopper::Bf16;
  const int64_t H = args.q_RHK.size(1);
  const int64_t num_items = args.sequences.num() * H;
  if (!has_group_products(device) || !dq_sum_RHX.defined() || num_items > INT_MAX / 2 ||
      !hopper::fills_device(args.sequences, H, device.num_multiprocessors())) {
    return false;
  }
  hopper::Arguments arguments{};
  arguments.d_o = pointer<const Bf16>(args.do_RHV);
  arguments.q = pointer<const Bf16>(args.q_RHK);
  arguments.k = pointer<const Bf16>(args.k_RHK);
  arguments.v = pointer<const Bf16>(args.v_RHV);
  arguments.lse = pointer<const float>(args.lse_RH);
  arguments.delta = pointer<const float>(delta_RH);
  arguments.dq_sum = pointer<float>(dq_sum_RHX);
  arguments.dq = pointer<Bf16>(args.dq_RHK);
  arguments.dk = pointer<Bf16>(args.dk_RHK);
  arguments.dv = pointer<Bf16>(args.dv_RHV);
  arguments.v_row_stride = args.v_RHV.stride(0);
  arguments.v_head_stride = args.v_RHV.stride(1);
  arguments.dv_row_stride = args.dv_RHV.stride(0);
  arguments.dv_head_stride = args.dv_RHV.stride(1);
  arguments.offsets = pointer<const int32_t>(args.sequences.device_offsets);
  arguments.num_items = narrow<int>(num_items);
  arguments.H = narrow<int>(H);
  arguments.K = narrow<int>(args.q_RHK.size(2));
  arguments.V = narrow<int>(args.v_RHV.size(2));
  arguments.scale = static_cast<float>(args.scale);
  arguments.scale_log2 = static_cast<float>(args.scale) * hopper::kLog2e;
  allow_shared_bytes(hopper::causal_attention_backward_groups_kernel, hopper::kSharedBytes);
  launch(device, "causal_attention_backward_groups_kernel",
         hopper::causal_attention_backward_groups_kernel,
         std::min<int64_t>(num_items, device.num_multiprocessors()), hopper::kThreads,
         hopper::kSharedBytes, arguments);
  return true;
}

}  // namespace deltatrain::backend::cuda
