// The forward scan over chunks: outputs, residuals, and the state entering each chunk.
#include "backend/cuda/gated_delta_rule/scan.cuh"
#include "backend/cuda/launch.cuh"

namespace deltatrain::backend::cuda::delta {

namespace {

template <int K, int V, GateKind kKind, int kStages>
struct alignas(16) Shared {
  ScanInputs<K, V, kKind> inputs[kStages];
  ScanMade<K, V, kKind> made;
};

template <int K, int V, GateKind kKind>
__device__ __forceinline__ void start_loads(ScanInputs<K, V, kKind>& in, const DeltaArguments& args,
                                            ChunkPlace place, int chunk, int value_head) {
  constexpr int kThreads = ScanShape<K, V, kKind>::kThreads;
  const int64_t block = int64_t{chunk} * args.G + value_head;
  const int head = value_head / (args.G / args.H);
  const int64_t first_key = (place.first_row * args.H + head) * K;
  if constexpr (kKind == GateKind::kChannel) {
    copy_float_rows_async<K, kThreads>(in.g, args.g + (place.first_row * args.G + value_head) * K,
                                       int64_t{args.G} * K, place.rows);
  }
  copy_rows_async<K, kThreads>(in.k, args.k + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<K, kThreads>(in.q, args.q + first_key, int64_t{args.H} * K, place.rows);
  copy_rows_async<V, kThreads>(in.v,
                               args.v + place.first_row * args.v_stride + int64_t{value_head} * V,
                               args.v_stride, place.rows);
  constexpr int kGateFloats = ScanShape<K, V, kKind>::kGateFloats;
  copy_bytes_async<kGateFloats * 4, kThreads>(in.gates, args.gates + block * kGateFloats);
  copy_bytes_async<kLowerElements * 2, kThreads>(in.feedback,
                                                 args.feedback + block * kLowerElements);
  if constexpr (kKind == GateKind::kChannel) {
    copy_bytes_async<kLowerElements * 2, kThreads>(in.scores, args.scores + block * kLowerElements);
  }
  copy_async_commit();
}

// Grid: one block per (sequence, value head); V / 16 warps. The scan's own traffic per token and
// value head, bytes: q, k 4 K, v and o 4 V, F 80, gates 16 (KDA: g 4 K, beta 4, P 80); saved z 2 V
// and states K V / 32.
template <int K, int V, GateKind kKind, int kStages, int kBlocksPerProcessor>
__global__ void __launch_bounds__(ScanShape<K, V, kKind>::kThreads, kBlocksPerProcessor)
    gated_delta_rule_forward_scan_kernel(const DeltaArguments args) {
  using Shape = ScanShape<K, V, kKind>;
  constexpr bool kChannel = Shape::kChannel;
  auto& shared = *dynamic_shared<Shared<K, V, kKind, kStages>>();
  const int sequence = static_cast<int>(blockIdx.x) / args.G;
  const int value_head = static_cast<int>(blockIdx.x) % args.G;
  const int t2 = fragment_column();
  const int first_v = kTile * warp_id();
  const int first_chunk = first_chunk_of(args.map, sequence);
  const int num_chunks = first_chunk_of(args.map, sequence + 1) - first_chunk;
  const int64_t state_at = (int64_t{sequence} * args.G + value_head) * K * V;

  start_loads(shared.inputs[0], args, place_in_sequence(args.map, sequence, 0), first_chunk,
              value_head);

  float s[K / 8][4];  // (V, K): the state, transposed
  if (args.initial_state != nullptr) {
    load_state<K, V>(s, args.initial_state + state_at);
  } else {
    set_zero(s);
  }

#pragma unroll 1
  for (int index = 0; index < num_chunks; ++index) {
    const ChunkPlace place = place_in_sequence(args.map, sequence, index);
    const int64_t block = int64_t{first_chunk + index} * args.G + value_head;
    auto& in = shared.inputs[index % kStages];
    auto& made = shared.made;
    const float* s_beta = in.gates + (kChannel ? 0 : kGateBeta * kChunk);

    copy_async_wait<0>();
    __syncthreads();
    if (kStages > 1 && index + 1 < num_chunks) {
      start_loads(shared.inputs[(index + 1) % kStages], args,
                  place_in_sequence(args.map, sequence, index + 1), first_chunk + index + 1,
                  value_head);
    }
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
    uint32_t packed_s[K / kTile][4];
#pragma unroll
    for (int c = 0; c < K / kTile; ++c) to_left(packed_s[c], s[2 * c], s[2 * c + 1]);
    if (args.states != nullptr) store_state_bf16<K>(args.states + block * K * V, packed_s);

    // y = v - (k exp(G)) S
    float y[8][4];  // (V, rows)
    set_zero(y);
#pragma unroll
    for (int c = 0; c < K / kTile; ++c) {
#pragma unroll
      for (int n = 0; n < kTileRows; ++n) {
        uint32_t b[4];
        load_right<Tile<K>>(b, in.k, kTile * n, kTile * c);
        multiply(y[2 * n], y[2 * n + 1], packed_s[c], b);
      }
    }
    float largest[2] = {0, 0};  // of y, by row of the fragment
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
      uint32_t v[4];
      load_left_transposed<Tile<V>>(v, in.v, kTile * n, first_v);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&d)[4] = y[2 * n + half];
        const int row = kTile * n + 8 * half + t2;
        float2 grown = make_float2(1, 1);
        if constexpr (!kChannel) grown = load_pair(in.gates + kGateGrown * kChunk + row);
        d[0] = low_bf16(v[2 * half]) - grown.x * d[0];
        d[1] = high_bf16(v[2 * half]) - grown.y * d[1];
        d[2] = low_bf16(v[2 * half + 1]) - grown.x * d[2];
        d[3] = high_bf16(v[2 * half + 1]) - grown.y * d[3];
        largest[0] = largest_of(largest[0], d[0], d[1]);
        largest[1] = largest_of(largest[1], d[2], d[3]);
      }
    }
    // z = y - F (beta y); entries of F are at most 1, so that z has the range of y within a factor
    // of 64
    const RowScale scale = scale_rows(largest[0], largest[1]);
    multiply_rows(y, scale.up);
    uint32_t weighted[kTileRows][4];  // -beta y, then beta z; fp16, scaled
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&d)[4] = y[2 * n + half];
        const float2 beta = load_pair(s_beta + kTile * n + 8 * half + t2);
        weighted[n][2 * half] = pack_fp16(-beta.x * d[0], -beta.y * d[1]);
        weighted[n][2 * half + 1] = pack_fp16(-beta.x * d[2], -beta.y * d[3]);
      }
    }
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
#pragma unroll
      for (int column = 0; column <= row; ++column) {
        uint32_t b[4];
        load_right<SmallTile>(b, in.feedback + lower_tile(row, column) * kTileElements, 0, 0);
        multiply_fp16(y[2 * row], y[2 * row + 1], weighted[column], b);
      }
    }
    // Before y turns back from the scaled z to z.
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&d)[4] = y[2 * n + half];
        const float2 beta = load_pair(s_beta + kTile * n + 8 * half + t2);
        weighted[n][2 * half] = pack_fp16(beta.x * d[0], beta.y * d[1]);
        weighted[n][2 * half + 1] = pack_fp16(beta.x * d[2], beta.y * d[3]);
      }
    }
    multiply_rows(y, scale.down);
    // This warp alone reads and writes its columns of v's tile, which now holds z and then o on
    // their way out.
    if (args.residual != nullptr) {
      float carried[2] = {0, 0};
      sync_warp();
#pragma unroll
      for (int n = 0; n < kTileRows; ++n) {
        uint32_t z[4];
        to_left_carried(z, y[2 * n], y[2 * n + 1], carried);
        store_transposed<Tile<V>>(in.v, kTile * n, first_v, z);
      }
      sync_warp();
      store_columns<Tile<V>>(args.residual + block * kChunk * V, V, in.v, first_v, kChunk);
    }
    // S <- exp(G_C) S + (k exp(G_C - G))^T (beta z), the right factor as the sum of two bf16
    // numbers: with correlated keys much of this sum cancels
#pragma unroll
    for (int n = 0; n < K / 8; ++n) {
      float2 decay;
      if constexpr (kChannel) {
        decay = load_pair(made.decay + 8 * n + t2);
      } else {
        decay.x = decay.y = in.gates[kGateGrown * kChunk + kChunk - 1];
      }
      s[n][0] *= decay.x;
      s[n][1] *= decay.y;
      s[n][2] *= decay.x;
      s[n][3] *= decay.y;
    }
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      uint32_t high[4];
      uint32_t low[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&d)[4] = y[2 * row + half];
        const int at = kTile * row + 8 * half + t2;
        float2 factor = load_pair(s_beta + at);
        if constexpr (!kChannel) {
          const float2 left = load_pair(in.gates + kGateLeft * kChunk + at);
          factor.x *= left.x;
          factor.y *= left.y;
        }
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const SplitWord word = split(factor.x * d[2 * upper], factor.y * d[2 * upper + 1]);
          high[2 * half + upper] = word.high;
          low[2 * half + upper] = word.low;
        }
      }
#pragma unroll
      for (int c = 0; c < K / kTile; ++c) {
        uint32_t b[4];
        load_right_transposed<Tile<K>>(b, s_k_left, kTile * row, kTile * c);
        multiply(s[2 * c], s[2 * c + 1], high, b);
        multiply(s[2 * c], s[2 * c + 1], low, b);
      }
    }
    if constexpr (!kChannel) __syncthreads();  // P is complete
    sync_warp();
    // o = scale (q exp(G)) S + P (beta z), half of the rows at a time to hold fewer registers
#pragma unroll
    for (int first = 0; first < kTileRows; first += 2) {
      float o[4][4];
      set_zero(o);
#pragma unroll
      for (int c = 0; c < K / kTile; ++c) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          uint32_t b[4];
          load_right<Tile<K>>(b, in.q, kTile * (first + n), kTile * c);
          multiply(o[2 * n], o[2 * n + 1], packed_s[c], b);
        }
      }
      if constexpr (kChannel) {
        multiply_rows(o, scale.up);
      } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 grown =
              load_pair(in.gates + kGateGrown * kChunk + kTile * first + 8 * n + t2);
          const float x = args.scale * grown.x;
          const float y_scale = args.scale * grown.y;
          o[n][0] *= scale.up[0] * x;
          o[n][1] *= scale.up[0] * y_scale;
          o[n][2] *= scale.up[1] * x;
          o[n][3] *= scale.up[1] * y_scale;
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int column = 0; column <= first + n; ++column) {
          uint32_t b[4];
          load_right<SmallTile>(b, s_scores + lower_tile(first + n, column) * kTileElements, 0, 0);
          multiply_fp16(o[2 * n], o[2 * n + 1], weighted[column], b);
        }
      }
      multiply_rows(o, scale.down);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t packed[4];
        to_left(packed, o[2 * n], o[2 * n + 1]);
        store_transposed<Tile<V>>(in.v, kTile * (first + n), first_v, packed);
      }
    }
    sync_warp();
    store_columns<Tile<V>>(args.o + (place.first_row * args.G + value_head) * V,
                           int64_t{args.G} * V, in.v, first_v, place.rows);

    if (kStages == 1 && index + 1 < num_chunks) {
      __syncthreads();
      start_loads(shared.inputs[0], args, place_in_sequence(args.map, sequence, index + 1),
                  first_chunk + index + 1, value_head);
    }
  }
  if (args.final_state != nullptr) store_state<K, V>(args.final_state + state_at, s);
}

template <class Config>
constexpr size_t kSharedBytes =
    sizeof(Shared<Config::K, Config::V, Config::kKind, Config::kStages>);

}  // namespace

int64_t scan_forward_shared_bytes(GateKind kind, int64_t K, int64_t V) {
  return with_scan_config(
      kind, K, V, [](auto config) { return int64_t{kSharedBytes<decltype(config)>}; });
}

void scan_forward(CudaDevice& device, const DeltaArguments& args, GateKind kind, int64_t S,
                  int64_t K, int64_t V) {
  with_scan_config(kind, K, V, [&](auto config) {
    using Config = decltype(config);
    const auto kernel =
        gated_delta_rule_forward_scan_kernel<Config::K, Config::V, Config::kKind, Config::kStages,
                                             Config::kBlocksPerProcessor>;
    allow_shared_bytes(kernel, kSharedBytes<Config>);
    launch(device, "gated_delta_rule_forward_scan_kernel", kernel, S * args.G,
           ScanShape<Config::K, Config::V, Config::kKind>::kThreads, kSharedBytes<Config>, args);
  });
}

}  // namespace deltatrain::backend::cuda::delta
