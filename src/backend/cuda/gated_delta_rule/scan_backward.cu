// The backward scan over chunks, last to first: dv, dbeta, and the gradient of the state leaving
// each chunk.
#include "backend/cuda/gated_delta_rule/scan.cuh"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

template <int K, int V, GateKind kKind>
struct BackwardInputs {
  ScanInputs<K, V, kKind> base;  // v's place holds do
  Bf16 residual[kChunk * V];
};

template <int K, int V, GateKind kKind, int kStages>
struct alignas(16) Shared {
  BackwardInputs<K, V, kKind> inputs[kStages];
  ScanMade<K, V, kKind> made;
  float dbeta[ScanShape<K, V, kKind>::kWarps][kChunk];  // each warp's part of the sum over V
};

template <int K, int V, GateKind kKind>
__device__ __forceinline__ void start_loads(BackwardInputs<K, V, kKind>& in,
                                            const DeltaArguments& args, ChunkPlace place, int chunk,
                                            int value_head) {
  constexpr int kThreads = ScanShape<K, V, kKind>::kThreads;
  const int64_t block = int64_t{chunk} * args.G + value_head;
  const int head = value_head / (args.G / args.H);
  const int64_t first_key = (place.first_row * args.H + head) * K;
  if constexpr (kKind == GateKind::kChannel) {
    copy_float_rows_async<K, kThreads>(in.base.g,
                                       args.g + (place.first_row * args.G + value_head) * K,
                                       int64_t{args.G} * K, place.rows);
  }
  copy_rows_async<K, kThreads>(in.base.k, args.k + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<K, kThreads>(in.base.q, args.q + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<V, kThreads>(in.base.v, args.d_o + (place.first_row * args.G + value_head) * V,
                               int64_t{args.G} * V, place.rows);
  copy_block_async<V, kChunk, kThreads>(in.residual, args.residual + block * kChunk * V);
  constexpr int kGateFloats = ScanShape<K, V, kKind>::kGateFloats;
  copy_bytes_async<kGateFloats * 4, kThreads>(in.base.gates, args.gates + block * kGateFloats);
  copy_bytes_async<kLowerElements * 2, kThreads>(in.base.feedback,
                                                 args.feedback + block * kLowerElements);
  if constexpr (kKind == GateKind::kChannel) {
    copy_bytes_async<kLowerElements * 2, kThreads>(in.base.scores,
                                                   args.scores + block * kLowerElements);
  }
  copy_async_commit();
}

// Sums over the 8 lanes that differ in lane / 4. `part` holds 16 columns, (n, e) for column 8 n + 2
// t + e; lane 4 g + t returns those of n = g, in `sum`.
__device__ __forceinline__ void sum_columns(float (&sum)[2],
                                            const float (&part)[2 * kTileRows][2]) {
  const int g = fragment_row();
  float four[4][2];
  float two[2][2];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float keep = g & 4 ? part[n + 4][e] : part[n][e];
      const float give = g & 4 ? part[n][e] : part[n + 4][e];
      four[n][e] = keep + __shfl_xor_sync(kAllLanes, give, 16, kWarpSize);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float keep = g & 2 ? four[n + 2][e] : four[n][e];
      const float give = g & 2 ? four[n][e] : four[n + 2][e];
      two[n][e] = keep + __shfl_xor_sync(kAllLanes, give, 8, kWarpSize);
    }
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float keep = g & 1 ? two[1][e] : two[0][e];
    const float give = g & 1 ? two[0][e] : two[1][e];
    sum[e] = keep + __shfl_xor_sync(kAllLanes, give, 4, kWarpSize);
  }
}

// Grid: one block per (sequence, value head); V / 16 warps. Traffic per token and value head,
// bytes: q, k 4 K, do, z and dv 6 V, F 80, gates 16 (KDA: g 4 K, beta 4, P 80), dbeta 4, the
// states' gradients K V / 32.
template <int K, int V, GateKind kKind, int kStages, int kBlocksPerProcessor>
__global__ void __launch_bounds__(ScanShape<K, V, kKind>::kThreads, kBlocksPerProcessor)
    gated_delta_rule_backward_scan_kernel(const DeltaArguments args) {
  using Shape = ScanShape<K, V, kKind>;
  constexpr bool kChannel = Shape::kChannel;
  auto& shared = *dynamic_shared<Shared<K, V, kKind, kStages>>();
  const int sequence = static_cast<int>(blockIdx.x) / args.G;
  const int value_head = static_cast<int>(blockIdx.x) % args.G;
  const int thread = static_cast<int>(threadIdx.x);
  const int t2 = fragment_column();
  const int first_v = kTile * warp_id();
  const int first_chunk = first_chunk_of(args.map, sequence);
  const int num_chunks = first_chunk_of(args.map, sequence + 1) - first_chunk;
  const int64_t state_at = (int64_t{sequence} * args.G + value_head) * K * V;

  start_loads(shared.inputs[(num_chunks - 1) % kStages], args,
              place_in_sequence(args.map, sequence, num_chunks - 1), first_chunk + num_chunks - 1,
              value_head);

  float ds[K / 8][4];  // (V, K): the gradient of the state, transposed
  if (args.d_final_state != nullptr) {
    load_state<K, V>(ds, args.d_final_state + state_at);
  } else {
    set_zero(ds);
  }

  // dbeta of a chunk is complete after the next barrier, when its parts from all warps are there.
  const auto store_dbeta = [&](ChunkPlace place) {
    for (int row = thread; row < place.rows; row += Shape::kThreads) {
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < Shape::kWarps; ++warp) sum += shared.dbeta[warp][row];
      args.dbeta[(place.first_row + row) * args.G + value_head] = sum;
    }
  };

#pragma unroll 1
  for (int index = num_chunks - 1; index >= 0; --index) {
    const ChunkPlace place = place_in_sequence(args.map, sequence, index);
    const int64_t block = int64_t{first_chunk + index} * args.G + value_head;
    auto& stage = shared.inputs[index % kStages];
    auto& in = stage.base;
    auto& made = shared.made;
    const float* s_beta = in.gates + (kChannel ? 0 : kGateBeta * kChunk);

    copy_async_wait<0>();
    __syncthreads();
    if (kStages > 1 && index > 0) {
      start_loads(shared.inputs[(index - 1) % kStages], args,
                  place_in_sequence(args.map, sequence, index - 1), first_chunk + index - 1,
                  value_head);
    }
    if (index + 1 < num_chunks) store_dbeta(place_in_sequence(args.map, sequence, index + 1));
    const Bf16* s_k_left;
    const __half* s_scores;
    if constexpr (kChannel) {
      make_gated_keys<K, Shape::kThreads>(in.q, in.k, made.k_left, made.decay, made.totals, in.g,
                                          args.scale);
      s_k_left = made.k_left;
      s_scores = in.scores;
    } else {
      make_scores<K, Shape::kWarps>(made.scores, in.q, in.k, in.gates, args.scale);
      s_k_left = in.k;
      s_scores = made.scores;
    }
    uint32_t packed_ds[K / kTile][4];
#pragma unroll
    for (int c = 0; c < K / kTile; ++c) to_left(packed_ds[c], ds[2 * c], ds[2 * c + 1]);
    store_state_bf16<K>(args.d_states + block * K * V, packed_ds);

    // dd = (k exp(G_C - G)) dS + P^T do
    float d[8][4];  // (V, rows)
    set_zero(d);
#pragma unroll
    for (int c = 0; c < K / kTile; ++c) {
#pragma unroll
      for (int n = 0; n < kTileRows; ++n) {
        uint32_t b[4];
        load_right<Tile<K>>(b, s_k_left, kTile * n, kTile * c);
        multiply(d[2 * n], d[2 * n + 1], packed_ds[c], b);
      }
    }
    if constexpr (!kChannel) {
#pragma unroll
      for (int n = 0; n < 2 * kTileRows; ++n) {
        const float2 left = load_pair(in.gates + kGateLeft * kChunk + 8 * n + t2);
        d[n][0] *= left.x;
        d[n][1] *= left.y;
        d[n][2] *= left.x;
        d[n][3] *= left.y;
      }
      __syncthreads();  // P is complete
    }
    uint32_t weighted[kTileRows][4];  // do, then -beta dd; fp16, scaled
    float largest[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
      load_left_transposed<Tile<V>>(weighted[n], in.v, kTile * n, first_v);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        largest[i % 2] =
            largest_of(largest[i % 2], low_bf16(weighted[n][i]), high_bf16(weighted[n][i]));
      }
    }
    RowScale scale = scale_rows(largest[0], largest[1]);
    multiply_rows(d, scale.up);
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weighted[n][i] = pack_fp16(scale.up[i % 2] * low_bf16(weighted[n][i]),
                                   scale.up[i % 2] * high_bf16(weighted[n][i]));
      }
    }
#pragma unroll
    for (int column = 0; column < kTileRows; ++column) {
#pragma unroll
      for (int row = column; row < kTileRows; ++row) {
        uint32_t b[4];
        load_right_transposed<SmallTile>(b, s_scores + lower_tile(row, column) * kTileElements, 0,
                                         0);
        multiply_fp16(d[2 * column], d[2 * column + 1], weighted[row], b);
      }
    }
    // dr = dd - F^T (beta dd)
    multiply_rows(d, scale.down);
    largest[0] = largest[1] = 0;
#pragma unroll
    for (int n = 0; n < 2 * kTileRows; ++n) {
      const float2 beta = load_pair(s_beta + 8 * n + t2);
      largest[0] = largest_of(largest[0], beta.x * d[n][0], beta.y * d[n][1]);
      largest[1] = largest_of(largest[1], beta.x * d[n][2], beta.y * d[n][3]);
    }
    scale = scale_rows(largest[0], largest[1]);
    multiply_rows(d, scale.up);
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&x)[4] = d[2 * n + half];
        const float2 beta = load_pair(s_beta + kTile * n + 8 * half + t2);
        weighted[n][2 * half] = pack_fp16(-beta.x * x[0], -beta.y * x[1]);
        weighted[n][2 * half + 1] = pack_fp16(-beta.x * x[2], -beta.y * x[3]);
      }
    }
#pragma unroll
    for (int column = 0; column < kTileRows; ++column) {
#pragma unroll
      for (int row = column; row < kTileRows; ++row) {
        uint32_t b[4];
        load_right_transposed<SmallTile>(b, in.feedback + lower_tile(row, column) * kTileElements,
                                         0, 0);
        multiply_fp16(d[2 * column], d[2 * column + 1], weighted[row], b);
      }
    }
    multiply_rows(d, scale.down);
    // dbeta = rows of dr . z;  dv = beta dr
    float part[2 * kTileRows][2];
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
      uint32_t z[4];
      load_left_transposed<Tile<V>>(z, stage.residual, kTile * n, first_v);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&x)[4] = d[2 * n + half];
        part[2 * n + half][0] = x[0] * low_bf16(z[2 * half]) + x[2] * low_bf16(z[2 * half + 1]);
        part[2 * n + half][1] = x[1] * high_bf16(z[2 * half]) + x[3] * high_bf16(z[2 * half + 1]);
        const float2 beta = load_pair(s_beta + kTile * n + 8 * half + t2);
        x[0] *= beta.x;
        x[1] *= beta.y;
        x[2] *= beta.x;
        x[3] *= beta.y;
      }
    }
    float sum[2];
    sum_columns(sum, part);
    *reinterpret_cast<float2*>(&shared.dbeta[warp_id()][8 * fragment_row() + t2]) =
        make_float2(sum[0], sum[1]);

    // This warp alone reads and writes its columns of z's tile, which now holds dv on its way out.
    float carried[2] = {0, 0};
    sync_warp();
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
      uint32_t dv[4];
      to_left_carried(dv, d[2 * n], d[2 * n + 1], carried);
      store_transposed<Tile<V>>(stage.residual, kTile * n, first_v, dv);
    }
    sync_warp();
    store_columns<Tile<V>>(args.dv + place.first_row * args.dv_stride + int64_t{value_head} * V,
                           args.dv_stride, stage.residual, first_v, place.rows);

    // dS <- exp(G_C) dS + scale (q exp(G))^T do - (k exp(G))^T dv
#pragma unroll
    for (int n = 0; n < K / 8; ++n) {
      float2 decay;
      if constexpr (kChannel) {
        decay = load_pair(made.decay + 8 * n + t2);
      } else {
        decay.x = decay.y = in.gates[kGateGrown * kChunk + kChunk - 1];
      }
      ds[n][0] *= decay.x;
      ds[n][1] *= decay.y;
      ds[n][2] *= decay.x;
      ds[n][3] *= decay.y;
    }
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      uint32_t d_o[4];
      uint32_t dv[4];
      load_left_transposed<Tile<V>>(d_o, in.v, kTile * row, first_v);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&x)[4] = d[2 * row + half];
        float2 grown = make_float2(1, 1);
        if constexpr (!kChannel) {
          grown = load_pair(in.gates + kGateGrown * kChunk + kTile * row + 8 * half + t2);
#pragma unroll
          for (int upper = 0; upper < 2; ++upper) {
            uint32_t& word = d_o[2 * half + upper];
            word = pack_bf16(args.scale * grown.x * low_bf16(word),
                             args.scale * grown.y * high_bf16(word));
          }
        }
        dv[2 * half] = pack_bf16(-grown.x * x[0], -grown.y * x[1]);
        dv[2 * half + 1] = pack_bf16(-grown.x * x[2], -grown.y * x[3]);
      }
#pragma unroll
      for (int c = 0; c < K / kTile; ++c) {
        uint32_t b[4];
        load_right_transposed<Tile<K>>(b, in.q, kTile * row, kTile * c);
        multiply(ds[2 * c], ds[2 * c + 1], d_o, b);
        load_right_transposed<Tile<K>>(b, in.k, kTile * row, kTile * c);
        multiply(ds[2 * c], ds[2 * c + 1], dv, b);
      }
    }
    if (kStages == 1 && index > 0) {
      __syncthreads();
      start_loads(shared.inputs[0], args, place_in_sequence(args.map, sequence, index - 1),
                  first_chunk + index - 1, value_head);
    }
  }
  __syncthreads();
  store_dbeta(place_in_sequence(args.map, sequence, 0));
  if (args.d_initial_state != nullptr) store_state<K, V>(args.d_initial_state + state_at, ds);
}

template <class Config>
constexpr size_t kSharedBytes =
    sizeof(Shared<Config::K, Config::V, Config::kKind, Config::kStages>);

}  // namespace

int64_t scan_backward_shared_bytes(GateKind kind, int64_t K, int64_t V) {
  return with_scan_config(
      kind, K, V, [](auto config) { return int64_t{kSharedBytes<decltype(config)>}; });
}

void scan_backward(CudaDevice& device, const DeltaArguments& args, GateKind kind, int64_t S,
                  int64_t K, int64_t V) {
  with_scan_config(kind, K, V, [&](auto config) {
    using Config = decltype(config);
    const auto kernel =
        gated_delta_rule_backward_scan_kernel<Config::K, Config::V, Config::kKind, Config::kStages,
                                             Config::kBlocksPerProcessor>;
    allow_shared_bytes(kernel, kSharedBytes<Config>);
    launch(device, "gated_delta_rule_backward_scan_kernel", kernel, S * args.G,
           ScanShape<Config::K, Config::V, Config::kKind>::kThreads, kSharedBytes<Config>, args);
  });
}

}  // namespace deltatrain::backend::cuda::delta
