// Attention in tiles of 64 queries by 64 keys. Forward keeps a running maximum and sum per query (a
// tile of queries is one task); backward goes through the key tiles of one head of one sequence in
// order (one task), so that every gradient is summed in a fixed order.
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/small_gemm.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kStepRows = 2;  // so few queries go row by row: transposing keys would cost more
constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Rows {
  const float* data;
  int64_t stride;
};

// Keys and values of one head, from the first row that a query may see.
struct Keys {
  Rows k;
  Rows v;
};

struct Sizes {
  int64_t K;
  int64_t V;
  int64_t Kp;
  int64_t Vp;
};

Sizes make_sizes(int64_t K, int64_t V) { return {K, V, round_up(K, kLanes), round_up(V, kLanes)}; }

// A tile [kTile, padded] with zeros where there is nothing.
void load_tile(Rows rows, int64_t count, int64_t width, int64_t padded, float* tile) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(tile + i * padded, rows.data + i * rows.stride,
                static_cast<size_t>(width) * sizeof(float));
    std::fill(tile + i * padded + width, tile + (i + 1) * padded, 0.0F);
  }
  std::fill(tile + count * padded, tile + kTile * padded, 0.0F);
}

int64_t forward_tile_floats(const Sizes& sizes) {
  return kTile * (3 * sizes.Kp + 2 * sizes.Vp + kTile + 2);
}

// Queries [0, count) at positions first_position ...
void forward_tile(const Sizes& sizes, float scale, Rows q, int64_t count, int64_t first_position,
                  const Keys& keys, float* scratch, float* out, int64_t out_stride, float* lse,
                  int64_t lse_stride) {
  float* q_tile = scratch;
  float* k_tile = q_tile + kTile * sizes.Kp;
  float* k_transposed = k_tile + kTile * sizes.Kp;
  float* v_tile = k_transposed + kTile * sizes.Kp;
  float* sums = v_tile + kTile * sizes.Vp;
  float* scores = sums + kTile * sizes.Vp;
  float* largest = scores + kTile * kTile;
  float* total = largest + kTile;
  load_tile(q, count, sizes.K, sizes.Kp, q_tile);
  std::fill(sums, sums + kTile * sizes.Vp, 0.0F);
  std::fill(largest, largest + kTile, kNever);
  std::fill(total, total + kTile, 0.0F);
  for (int64_t first_key = 0; first_key < first_position + count; first_key += kTile) {
    const int64_t num_keys = std::min(kTile, first_position + count - first_key);
    load_tile({keys.k.data + first_key * keys.k.stride, keys.k.stride}, num_keys, sizes.K, sizes.Kp,
              k_tile);
    load_tile({keys.v.data + first_key * keys.v.stride, keys.v.stride}, num_keys, sizes.V, sizes.Vp,
              v_tile);
    transpose(k_tile, sizes.Kp, kTile, sizes.Kp, k_transposed, kTile);
    small_gemm(Store::kSet, count, kTile, sizes.K, by_rows(q_tile, sizes.Kp), k_transposed, kTile,
               scores, kTile);
    for (int64_t i = 0; i < count; ++i) {
      float* row = scores + i * kTile;
      const int64_t seen =
          first_position + i - first_key + 1;  // keys of this tile before and at the query
      float best = largest[i];
#pragma omp simd reduction(max : best)
      for (int64_t j = 0; j < kTile; ++j) {
        const float s = j < seen ? scale * row[j] : kNever;
        row[j] = s;
        best = s > best ? s : best;
      }
#pragma omp simd
      for (int64_t j = 0; j < kTile; ++j) {
        const float p = exp_f32(row[j] - best);
        row[j] = j < seen ? p : 0.0F;
      }
      const float sum = sum_over(kTile, [=](auto at) { return at(row); });
      const float correction = exp_f32(largest[i] - best);
      largest[i] = best;
      total[i] = total[i] * correction + sum;
#pragma omp simd
      for (int64_t v = 0; v < sizes.Vp; ++v) sums[i * sizes.Vp + v] *= correction;
    }
    small_gemm(Store::kAdd, count, sizes.Vp, num_keys, by_rows(scores, kTile), v_tile, sizes.Vp,
               sums, sizes.Vp);
  }
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1.0F / total[i];
#pragma omp simd
    for (int64_t v = 0; v < sizes.V; ++v)
      out[i * out_stride + v] = sums[i * sizes.Vp + v] * inverse;
    if (lse != nullptr) {
      lse[i * lse_stride] = static_cast<float>(static_cast<double>(largest[i]) +
                                               std::log(static_cast<double>(total[i])));
    }
  }
}

// One query over `num_keys` keys.
void forward_row(const Sizes& sizes, float scale, const float* q, int64_t num_keys,
                 const Keys& keys, float* out, float* lse) {
  float largest = kNever;
  float total = 0;
  float p[kTile];
  std::fill(out, out + sizes.V, 0.0F);
  for (int64_t first = 0; first < num_keys; first += kTile) {
    const int64_t count = std::min(kTile, num_keys - first);
    float best = largest;
    for (int64_t j = 0; j < count; ++j) {
      const float* k = keys.k.data + (first + j) * keys.k.stride;
      p[j] = scale * sum_over(sizes.K, [=](auto at) { return at(q) * at(k); });
      best = std::max(best, p[j]);
    }
    const float correction = exp_f32(largest - best);
    largest = best;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) p[j] = exp_f32(p[j] - best);
    total = total * correction + sum_over(count, [&](auto at) { return at(p); });
#pragma omp simd
    for (int64_t v = 0; v < sizes.V; ++v) out[v] *= correction;
    for (int64_t j = 0; j < count; ++j) {
      const float* value = keys.v.data + (first + j) * keys.v.stride;
#pragma omp simd
      for (int64_t v = 0; v < sizes.V; ++v) out[v] += p[j] * value[v];
    }
  }
  const float inverse = 1.0F / total;
#pragma omp simd
  for (int64_t v = 0; v < sizes.V; ++v) out[v] *= inverse;
  if (lse != nullptr)
    *lse = static_cast<float>(static_cast<double>(largest) + std::log(static_cast<double>(total)));
}

// New keys and values to their place in the caches.
void append_to_cache(const ops::CausalAttentionForward& args) {
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  const int64_t V = args.v_RHV.size(2);
  const int64_t room = args.k_cache_SXHK.size(1);
  const int32_t* lengths = args.cache_lengths_S.data<int32_t>();
  const float* k = args.k_RHK.data<float>();
  const float* v = args.v_RHV.data<float>();
  float* k_cache = args.k_cache_SXHK.data<float>();
  float* v_cache = args.v_cache_SXHV.data<float>();
  parallel_for(args.sequences.num(), [&](int64_t s) {
    for (int64_t row = args.sequences.begin(s); row < args.sequences.end(s); ++row) {
      const int64_t to = s * room + lengths[s] + row - args.sequences.begin(s);
      std::memcpy(k_cache + to * H * K, k + row * H * K,
                  static_cast<size_t>(H * K) * sizeof(float));
      for (int64_t h = 0; h < H; ++h) {
        std::memcpy(v_cache + (to * H + h) * V,
                    v + row * args.v_RHV.stride(0) + h * args.v_RHV.stride(1),
                    static_cast<size_t>(V) * sizeof(float));
      }
    }
  });
}

// Tiles of backward for one head of one sequence.
struct BackwardTiles {
  float* k;             // [64, Kp]
  float* k_transposed;  // [Kp, 64]
  float* v_transposed;  // [Vp, 64]
  float* q;             // [64, Kp]
  float* d_out;         // [64, Vp]
  float* p;             // [64, 64]
  float* ds;            // [64, 64]
  float* dq;            // [64, Kp]
  float* dk;            // [64, Kp]
  float* dv;            // [64, Vp]
};

int64_t backward_tile_floats(const Sizes& sizes) {
  return kTile * (5 * sizes.Kp + 3 * sizes.Vp + 2 * kTile);
}

BackwardTiles cut_backward(const Sizes& sizes, float* scratch) {
  BackwardTiles t = {};
  const auto take = [&](int64_t width) {
    float* tile = scratch;
    scratch += kTile * width;
    return tile;
  };
  t.k = take(sizes.Kp);
  t.k_transposed = take(sizes.Kp);
  t.v_transposed = take(sizes.Vp);
  t.q = take(sizes.Kp);
  t.d_out = take(sizes.Vp);
  t.p = take(kTile);
  t.ds = take(kTile);
  t.dq = take(sizes.Kp);
  t.dk = take(sizes.Kp);
  t.dv = take(sizes.Vp);
  return t;
}

struct HeadGradient {
  Sizes sizes;
  float scale;
  int64_t length;
  Rows q;
  Rows k;
  Rows v;
  Rows d_out;
  const float* lse;      // stride statistic_stride
  const float* out_dot;  // do_i . o_i, the same stride
  int64_t statistic_stride;
  float* dq;  // stride q.stride
  float* dk;  // stride k.stride
  float* dv;
  int64_t dv_stride;
};

// p and ds of one tile from its scores (in t.p) and dp (in t.ds).
void softmax_gradient(const HeadGradient& head, int64_t first_query, int64_t num_queries,
                      int64_t first_key, const BackwardTiles& t) {
  for (int64_t i = 0; i < num_queries; ++i) {
    const int64_t at = (first_query + i) * head.statistic_stride;
    const float lse = head.lse[at];
    const float out_dot = head.out_dot[at];
    const int64_t seen = first_query + i - first_key + 1;
    float* p = t.p + i * kTile;
    float* ds = t.ds + i * kTile;
    if (first_query + i == 0) {
      // The first query sees one key: its p is 1 and nothing flows into its score. dp - out_dot
      // would be what two orders of one sum differ by.
      std::fill(p, p + kTile, 0.0F);
      std::fill(ds, ds + kTile, 0.0F);
      p[0] = 1.0F;
      continue;
    }
#pragma omp simd
    for (int64_t j = 0; j < kTile; ++j) {
      const float value = exp_f32(head.scale * p[j] - lse);
      const float kept = j < seen ? value : 0.0F;
      p[j] = kept;
      ds[j] = j < seen ? kept * (ds[j] - out_dot) : 0.0F;
    }
  }
}

void backward_key_tile(const HeadGradient& head, int64_t first_key, const BackwardTiles& t) {
  const Sizes& sizes = head.sizes;
  const int64_t num_keys = std::min(kTile, head.length - first_key);
  load_tile({head.k.data + first_key * head.k.stride, head.k.stride}, num_keys, sizes.K, sizes.Kp,
            t.k);
  transpose(t.k, sizes.Kp, kTile, sizes.Kp, t.k_transposed, kTile);
  load_tile({head.v.data + first_key * head.v.stride, head.v.stride}, num_keys, sizes.V, sizes.Vp,
            t.d_out);
  transpose(t.d_out, sizes.Vp, kTile, sizes.Vp, t.v_transposed, kTile);
  std::fill(t.dk, t.dk + kTile * sizes.Kp, 0.0F);
  std::fill(t.dv, t.dv + kTile * sizes.Vp, 0.0F);
  for (int64_t first_query = first_key; first_query < head.length; first_query += kTile) {
    const int64_t num_queries = std::min(kTile, head.length - first_query);
    load_tile({head.q.data + first_query * head.q.stride, head.q.stride}, num_queries, sizes.K,
              sizes.Kp, t.q);
    load_tile({head.d_out.data + first_query * head.d_out.stride, head.d_out.stride}, num_queries,
              sizes.V, sizes.Vp, t.d_out);
    small_gemm(Store::kSet, num_queries, kTile, sizes.K, by_rows(t.q, sizes.Kp), t.k_transposed,
               kTile, t.p, kTile);
    small_gemm(Store::kSet, num_queries, kTile, sizes.V, by_rows(t.d_out, sizes.Vp), t.v_transposed,
               kTile, t.ds, kTile);
    softmax_gradient(head, first_query, num_queries, first_key, t);
    small_gemm(Store::kAdd, num_keys, sizes.Vp, num_queries, by_columns(t.p, kTile), t.d_out,
               sizes.Vp, t.dv, sizes.Vp);
    small_gemm(Store::kAdd, num_keys, sizes.Kp, num_queries, by_columns(t.ds, kTile), t.q, sizes.Kp,
               t.dk, sizes.Kp);
    small_gemm(Store::kSet, num_queries, sizes.Kp, num_keys, by_rows(t.ds, kTile), t.k, sizes.Kp,
               t.dq, sizes.Kp);
    for (int64_t i = 0; i < num_queries; ++i) {
      float* dq = head.dq + (first_query + i) * head.q.stride;
      const float* from = t.dq + i * sizes.Kp;
      if (first_key == 0) {  // NOLINT(bugprone-branch-clone): = and +=, behind the pragma
#pragma omp simd
        for (int64_t c = 0; c < sizes.K; ++c) dq[c] = head.scale * from[c];
      } else {
#pragma omp simd
        for (int64_t c = 0; c < sizes.K; ++c) dq[c] += head.scale * from[c];
      }
    }
  }
  for (int64_t j = 0; j < num_keys; ++j) {
    float* dk = head.dk + (first_key + j) * head.k.stride;
#pragma omp simd
    for (int64_t c = 0; c < sizes.K; ++c) dk[c] = head.scale * t.dk[j * sizes.Kp + c];
    std::memcpy(head.dv + (first_key + j) * head.dv_stride, t.dv + j * sizes.Vp,
                static_cast<size_t>(sizes.V) * sizeof(float));
  }
}

}  // namespace

void causal_attention_forward(const Context& context, const ops::CausalAttentionForward& args) {
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  const int64_t V = args.v_RHV.size(2);
  const Sizes sizes = make_sizes(K, V);
  const int64_t thread_floats = round_up(forward_tile_floats(sizes), kLanes);
  int64_t num_tiles = 0;
  for (int64_t s = 0; s < args.sequences.num(); ++s)
    num_tiles += divide_up(args.sequences.length(s), kTile);
  const Arena::ScratchScope scope(*context.arena);
  float* scratch =
      context.arena->scratch(DType::kF32, {max_threads(), thread_floats}).data<float>();
  int32_t* tile_rows = context.arena->scratch(DType::kI32, {num_tiles, 2}).data<int32_t>();
  if (context.arena->is_planning()) return;
  // (sequence, first row) of each tile of queries, the longest rows of keys first.
  int64_t tile = num_tiles;
  for (int64_t s = 0; s < args.sequences.num(); ++s) {
    for (int64_t row = 0; row < args.sequences.length(s); row += kTile) {
      --tile;
      tile_rows[2 * tile] = narrow<int32_t>(s);
      tile_rows[2 * tile + 1] = narrow<int32_t>(row);
    }
  }
  const bool cached = args.k_cache_SXHK.defined();
  if (cached) append_to_cache(args);
  const float* q = args.q_RHK.data<float>();
  float* out = args.o_RHV.data<float>();
  float* lse = args.lse_RH.data<float>();
  const auto scale = static_cast<float>(args.scale);
  parallel_for(num_tiles * H, [&](int64_t task) {
    const int64_t s = tile_rows[2 * (task / H)];
    const int64_t first = tile_rows[2 * (task / H) + 1];
    const int64_t h = task % H;
    const int64_t begin = args.sequences.begin(s);
    const int64_t count = std::min(kTile, args.sequences.length(s) - first);
    Keys keys = {
        {args.k_RHK.data<float>() + (begin * H + h) * K, H * K},
        {args.v_RHV.data<float>() + begin * args.v_RHV.stride(0) + h * args.v_RHV.stride(1),
         args.v_RHV.stride(0)}};
    int64_t position = first;
    if (cached) {
      const int64_t room = args.k_cache_SXHK.size(1);
      keys = {{args.k_cache_SXHK.data<float>() + (s * room * H + h) * K, H * K},
              {args.v_cache_SXHV.data<float>() + (s * room * H + h) * V, H * V}};
      position += args.cache_lengths_S.data<int32_t>()[s];
    }
    const int64_t row = begin + first;
    float* tile_out = out + (row * H + h) * V;
    float* tile_lse = lse == nullptr ? nullptr : lse + row * H + h;
    const Rows queries = {q + (row * H + h) * K, H * K};
    if (count <= kStepRows) {
      for (int64_t i = 0; i < count; ++i) {
        forward_row(sizes, scale, queries.data + i * queries.stride, position + i + 1, keys,
                    tile_out + i * H * V, tile_lse == nullptr ? nullptr : tile_lse + i * H);
      }
    } else {
      forward_tile(sizes, scale, queries, count, position, keys,
                   scratch + thread_index() * thread_floats, tile_out, H * V, tile_lse, H);
    }
  });
}

void causal_attention_backward(const Context& context, const ops::CausalAttentionBackward& args) {
  const int64_t R = args.q_RHK.size(0);
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  const int64_t V = args.v_RHV.size(2);
  const Sizes sizes = make_sizes(K, V);
  const int64_t thread_floats = backward_tile_floats(sizes);
  const Arena::ScratchScope scope(*context.arena);
  float* scratch =
      context.arena->scratch(DType::kF32, {max_threads(), thread_floats}).data<float>();
  float* out_dot = context.arena->scratch(DType::kF32, {R, H}).data<float>();
  if (context.arena->is_planning()) return;
  const float* d_out = args.do_RHV.data<float>();
  const float* out = args.o_RHV.data<float>();
  parallel_rows(R * H, V, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const d_row = d_out + i * V;
      const float* const row = out + i * V;
      out_dot[i] = sum_over(V, [=](auto at) { return at(d_row) * at(row); });
    }
  });
  parallel_for(args.sequences.num() * H, [&](int64_t task) {
    const int64_t s = task / H;
    const int64_t h = task % H;
    const int64_t begin = args.sequences.begin(s);
    const int64_t key_at = (begin * H + h) * K;
    HeadGradient head = {};
    head.sizes = sizes;
    head.scale = static_cast<float>(args.scale);
    head.length = args.sequences.length(s);
    head.q = {args.q_RHK.data<float>() + key_at, H * K};
    head.k = {args.k_RHK.data<float>() + key_at, H * K};
    head.v = {args.v_RHV.data<float>() + begin * args.v_RHV.stride(0) + h * args.v_RHV.stride(1),
              args.v_RHV.stride(0)};
    head.d_out = {d_out + (begin * H + h) * V, H * V};
    head.lse = args.lse_RH.data<float>() + begin * H + h;
    head.out_dot = out_dot + begin * H + h;
    head.statistic_stride = H;
    head.dq = args.dq_RHK.data<float>() + key_at;
    head.dk = args.dk_RHK.data<float>() + key_at;
    head.dv = args.dv_RHV.data<float>() + begin * args.dv_RHV.stride(0) + h * args.dv_RHV.stride(1);
    head.dv_stride = args.dv_RHV.stride(0);
    const BackwardTiles tiles = cut_backward(sizes, scratch + thread_index() * thread_floats);
    for (int64_t first_key = 0; first_key < head.length; first_key += kTile)
      backward_key_tile(head, first_key, tiles);
  });
}

}  // namespace deltatrain::backend::cpu
