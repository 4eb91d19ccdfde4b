#include "backend/cpu/delta_chunk.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/delta_scores.h"
#include "base/check.h"  // round_up

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t C = kChunk;

// Cuts tiles from a block of floats; with no block it only counts.
class TileCutter {
 public:
  explicit TileCutter(float* data) : data_(data) {}
  float* floats(int64_t count) {
    float* tile = data_ == nullptr ? nullptr : data_ + used_;
    used_ += round_up(count, kLanes);
    return tile;
  }
  double* doubles(int64_t count) { return reinterpret_cast<double*>(floats(2 * count)); }
  int64_t used() const { return used_; }

 private:
  float* data_;
  int64_t used_ = 0;
};

struct SharedTiles {
  float* q;       // [64, Kp]
  float* k;       // [64, Kp]
  float* beta;    // [64]
  float* k_plus;  // K+ [64, Kp]
  float* k_end;   // Ke [64, Kp]
  float* q_plus;  // Q+ [64, Kp]
  ChunkDecay decay;
  ScoreTiles scores;
};

SharedTiles cut_shared(const DeltaSizes& sizes, TileCutter& cut) {
  const int64_t tile = C * sizes.Kp;
  SharedTiles t = {};
  t.q = cut.floats(tile);
  t.k = cut.floats(tile);
  t.beta = cut.floats(C);
  t.k_plus = cut.floats(tile);
  t.k_end = cut.floats(tile);
  t.q_plus = cut.floats(tile);
  const int64_t decays = sizes.per_channel ? tile : C;
  t.decay = {cut.doubles(decays), cut.floats(decays), cut.floats(decays), cut.floats(sizes.Kp)};
  t.scores.k_transposed = cut.floats(tile);
  if (!sizes.per_channel) {
    t.scores.pairwise = cut.floats(C * C);
    return t;
  }
  t.scores.q_transposed = cut.floats(tile);
  t.scores.step = cut.floats(tile);
  t.scores.step_transposed = cut.floats(tile);
  t.scores.row_factor = cut.floats(kBlock * sizes.Kp);
  t.scores.row_q = cut.floats(kBlock * sizes.Kp);
  t.scores.row_k = cut.floats(kBlock * sizes.Kp);
  t.scores.column_factor = cut.floats(tile);
  t.scores.column_k = cut.floats(tile);
  t.scores.block = cut.floats(tile);
  return t;
}

struct ForwardTiles {
  SharedTiles shared;
  float* rest;    // beta Y [64, Vp]
  float* out;     // O [64, Vp]
  float* scores;  // P, where it is not saved
};

ForwardTiles cut_forward(const DeltaSizes& sizes, TileCutter& cut) {
  return {cut_shared(sizes, cut), cut.floats(C * sizes.Vp), cut.floats(C * sizes.Vp),
          cut.floats(C * C)};
}

struct BackwardTiles {
  SharedTiles shared;
  float* d_out;        // dO [64, Vp]
  float* y;            // Y [64, Vp]
  float* d_values;     // dU [64, Vp]
  float* d_rest;       // dR [64, Vp]
  float* dv;           // dV [64, Vp]
  float* values_t;     // U^T [Vp, 64]
  float* state_t;      // a state's transpose [Vp, Kp]
  float* scores;       // P [64, 64] (GDN)
  float* d_scores;     // dP [64, 64]
  float* d_lower;      // dL [64, 64]
  float* dq;           // [64, Kp]
  float* dk_row;       // -exp(G) (S0 dV) [64, Kp]
  float* dk_end;       // exp(G_C - G) (dS1 U) [64, Kp]
  float* r;            // [64, Kp]
  float* dk_column;    // [64, Kp]
  double* dg;          // [64] or [64, Kp]
  double* sums;        // [Kp]
  float* state_carry;  // exp(G_C) rowsum(S0 dS1): 1 or Kp
  float* work;
};

BackwardTiles cut_backward(const DeltaSizes& sizes, TileCutter& cut) {
  const int64_t key_tile = C * sizes.Kp;
  const int64_t value_tile = C * sizes.Vp;
  BackwardTiles t = {};
  t.shared = cut_shared(sizes, cut);
  t.d_out = cut.floats(value_tile);
  t.y = cut.floats(value_tile);
  t.d_values = cut.floats(value_tile);
  t.d_rest = cut.floats(value_tile);
  t.dv = cut.floats(value_tile);
  t.values_t = cut.floats(value_tile);
  t.state_t = cut.floats(sizes.Vp * sizes.Kp);
  if (!sizes.per_channel) t.scores = cut.floats(C * C);
  t.d_scores = cut.floats(C * C);
  t.d_lower = cut.floats(C * C);
  t.dq = cut.floats(key_tile);
  t.dk_row = cut.floats(key_tile);
  t.dk_end = cut.floats(key_tile);
  t.r = cut.floats(key_tile);
  t.dk_column = cut.floats(key_tile);
  t.dg = cut.doubles(sizes.per_channel ? key_tile : C);
  t.sums = cut.doubles(sizes.Kp);
  t.state_carry = cut.floats(sizes.Kp);
  t.work = cut.floats(score_work_floats(sizes));
  return t;
}

// `rows` rows of `columns` numbers into a tile, the rest of [padded_rows, padded_columns] zero.
void load_tile(const float* from, int64_t stride, int64_t rows, int64_t columns,
               int64_t padded_rows, int64_t padded_columns, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * padded_columns, from + i * stride,
                static_cast<size_t>(columns) * sizeof(float));
    std::fill(to + i * padded_columns + columns, to + (i + 1) * padded_columns, 0.0F);
  }
  std::fill(to + rows * padded_columns, to + padded_rows * padded_columns, 0.0F);
}

void load_shared(const DeltaSizes& sizes, const ChunkInput& in, int64_t n, const SharedTiles& t) {
  const int64_t Kp = sizes.Kp;
  load_tile(in.q, in.qk_stride, in.num_rows, sizes.K, n, Kp, t.q);
  load_tile(in.k, in.qk_stride, in.num_rows, sizes.K, n, Kp, t.k);
  for (int64_t i = 0; i < n; ++i) t.beta[i] = i < in.num_rows ? in.beta[i * in.beta_stride] : 0.0F;
  fill_decay(sizes, in, n, t.decay);
  for (int64_t i = 0; i < n; ++i) {
    const float* q = t.q + i * Kp;
    const float* k = t.k + i * Kp;
    float* k_plus = t.k_plus + i * Kp;
    float* k_end = t.k_end + i * Kp;
    float* q_plus = t.q_plus + i * Kp;
    if (sizes.per_channel) {
      const float* from_start = t.decay.from_start + i * Kp;
      const float* to_end = t.decay.to_end + i * Kp;
#pragma omp simd
      for (int64_t c = 0; c < Kp; ++c) {
        k_plus[c] = k[c] * from_start[c];
        k_end[c] = k[c] * to_end[c];
        q_plus[c] = in.scale * q[c] * from_start[c];
      }
    } else {
      const float from_start = t.decay.from_start[i];
      const float to_end = t.decay.to_end[i];
#pragma omp simd
      for (int64_t c = 0; c < Kp; ++c) {
        k_plus[c] = k[c] * from_start;
        k_end[c] = k[c] * to_end;
        q_plus[c] = in.scale * q[c] * from_start;
      }
    }
  }
}

// Inverses of the unit lower triangular diagonal blocks, row by row; the blocks side by side
// because each alone is a chain of dependent steps.
void invert_diagonal_blocks(int64_t num_blocks, const float* lower, float* inverse) {
  for (int64_t i = 0; i < kBlock; ++i) {
    for (int64_t block = 0; block < num_blocks; ++block) {
      float* X = inverse + block * kBlock * kBlock;
      const float* row = lower + (block * kBlock + i) * C + block * kBlock;
      alignas(64) float unit[kLanes] = {};
      unit[i] = 1.0F;
      Lanes sum = load(unit);
      for (int64_t j = 0; j < i; ++j) sum -= row[j] * load(X + j * kBlock);
      store(X + i * kBlock, sum);
    }
  }
}

// (I + L) U = rest; rest is used up.
void solve(const DeltaSizes& sizes, int64_t num_blocks, const ChunkSaved& saved, float* rest,
           float* values) {
  const int64_t Vp = sizes.Vp;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = block * kBlock;
    if (block > 0) {
      small_gemm(Store::kSubtract, kBlock, Vp, first, by_rows(saved.lower + first * C, C), values,
                 Vp, rest + first * Vp, Vp);
    }
    small_gemm(Store::kSet, kBlock, Vp, kBlock,
               by_rows(saved.inverse + block * kBlock * kBlock, kBlock), rest + first * Vp, Vp,
               values + first * Vp, Vp);
  }
}

// (I + L)^T d_rest = d_values; d_values is used up.
void solve_transposed(const DeltaSizes& sizes, int64_t num_blocks, const ChunkSaved& saved,
                      float* d_values, float* d_rest) {
  const int64_t Vp = sizes.Vp;
  for (int64_t block = num_blocks - 1; block >= 0; --block) {
    const int64_t first = block * kBlock;
    const int64_t after = first + kBlock;
    if (block + 1 < num_blocks) {
      small_gemm(Store::kSubtract, kBlock, Vp, num_blocks * kBlock - after,
                 by_columns(saved.lower + after * C + first, C), d_rest + after * Vp, Vp,
                 d_values + first * Vp, Vp);
    }
    small_gemm(Store::kSet, kBlock, Vp, kBlock,
               by_columns(saved.inverse + block * kBlock * kBlock, kBlock), d_values + first * Vp,
               Vp, d_rest + first * Vp, Vp);
  }
}

// state = exp(G_C) state, row by row.
void decay_state(const DeltaSizes& sizes, const ChunkDecay& decay, float* state) {
  for (int64_t c = 0; c < sizes.K; ++c) {
    const float factor = decay.whole[sizes.per_channel ? c : 0];
    float* row = state + c * sizes.Vp;
#pragma omp simd
    for (int64_t v = 0; v < sizes.Vp; ++v) row[v] *= factor;
  }
}

float dot(const float* a, const float* b, int64_t count) {
  return sum_over(count, [=](auto at) { return at(a) * at(b); });
}

// Before d_state is decayed: what exp(G_C) S0 passes on, for every step of the chunk.
void fill_state_carry(const DeltaSizes& sizes, const ChunkDecay& decay, const float* state,
                      const float* d_state, float* carry) {
  double total = 0;
  std::fill(carry, carry + sizes.Kp, 0.0F);
  for (int64_t c = 0; c < sizes.K; ++c) {
    const float product = dot(state + c * sizes.Vp, d_state + c * sizes.Vp, sizes.Vp);
    if (sizes.per_channel) carry[c] = decay.whole[c] * product;
    total += static_cast<double>(product);
  }
  if (!sizes.per_channel)
    carry[0] = static_cast<float>(static_cast<double>(decay.whole[0]) * total);
}

// Parts of dg that go through the states: reads of S0 by rows i >= m, ...
void add_state_reads(const DeltaSizes& sizes, int64_t n, const BackwardTiles& t) {
  const int64_t Kp = sizes.Kp;
  double total = 0;
  std::fill(t.sums, t.sums + Kp, 0.0);
  for (int64_t i = n - 1; i >= 0; --i) {
    const float* q = t.shared.q + i * Kp;
    const float* k = t.shared.k + i * Kp;
    const float* dq = t.dq + i * Kp;
    const float* dk_row = t.dk_row + i * Kp;
    if (sizes.per_channel) {
#pragma omp simd
      for (int64_t c = 0; c < Kp; ++c) {
        t.sums[c] += static_cast<double>(q[c] * dq[c] + k[c] * dk_row[c]);
        t.dg[i * Kp + c] += t.sums[c];
      }
    } else {
      total += static_cast<double>(dot(q, dq, Kp) + dot(k, dk_row, Kp));
      t.dg[i] += total;
    }
  }
}

// ... writes to S1 of rows j < m, and the state that passes through.
void add_state_writes(const DeltaSizes& sizes, int64_t n, const BackwardTiles& t) {
  const int64_t Kp = sizes.Kp;
  double total = static_cast<double>(t.state_carry[0]);
  for (int64_t c = 0; c < Kp; ++c) t.sums[c] = static_cast<double>(t.state_carry[c]);
  for (int64_t m = 0; m < n; ++m) {
    const float* k = t.shared.k + m * Kp;
    const float* dk_end = t.dk_end + m * Kp;
    if (sizes.per_channel) {
#pragma omp simd
      for (int64_t c = 0; c < Kp; ++c) {
        t.dg[m * Kp + c] += t.sums[c];
        t.sums[c] += static_cast<double>(k[c] * dk_end[c]);
      }
    } else {
      t.dg[m] += total;
      total += static_cast<double>(dot(k, dk_end, Kp));
    }
  }
}

// tile_ic *= sign exp(...)_ic
void scale_tile(const DeltaSizes& sizes, int64_t n, const float* factors, float sign, float* tile) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = tile + i * sizes.Kp;
    if (sizes.per_channel) {
      const float* factor = factors + i * sizes.Kp;
#pragma omp simd
      for (int64_t c = 0; c < sizes.Kp; ++c) row[c] *= sign * factor[c];
    } else {
      const float factor = sign * factors[i];
#pragma omp simd
      for (int64_t c = 0; c < sizes.Kp; ++c) row[c] *= factor;
    }
  }
}

void write_gradients(const DeltaSizes& sizes, const ChunkInput& in, const BackwardTiles& t,
                     const ChunkGradients& out) {
  const int64_t Kp = sizes.Kp;
  for (int64_t i = 0; i < in.num_rows; ++i) {
    const float beta = t.shared.beta[i];
    float* dq = out.dq + i * out.dqk_stride;
    float* dk = out.dk + i * out.dqk_stride;
    const int64_t row = i * Kp;
    if (out.adds_qk) {  // NOLINT(bugprone-branch-clone): = and += are told apart after the pragma
#pragma omp simd
      for (int64_t c = 0; c < sizes.K; ++c) {
        dq[c] += t.dq[row + c];
        dk[c] += t.dk_row[row + c] + t.dk_end[row + c] + beta * t.r[row + c] + t.dk_column[row + c];
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < sizes.K; ++c) {
        dq[c] = t.dq[row + c];
        dk[c] = t.dk_row[row + c] + t.dk_end[row + c] + beta * t.r[row + c] + t.dk_column[row + c];
      }
    }
    std::memcpy(out.dv + i * out.dv_stride, t.dv + i * sizes.Vp,
                static_cast<size_t>(sizes.V) * sizeof(float));
    out.dbeta[i * out.dbeta_stride] = dot(t.d_rest + i * sizes.Vp, t.y + i * sizes.Vp, sizes.Vp) +
                                      dot(t.r + row, t.shared.k + row, Kp);
    float* dg = out.dg + i * out.dg_stride;
    if (sizes.per_channel) {
      for (int64_t c = 0; c < sizes.K; ++c) dg[c] = static_cast<float>(t.dg[row + c]);
    } else {
      dg[0] = static_cast<float>(t.dg[i]);
    }
  }
}

}  // namespace

DeltaSizes delta_sizes(int64_t K, int64_t V, bool per_channel) {
  return {K, V, round_up(K, kLanes), round_up(V, kLanes), per_channel};
}

int64_t saved_floats(const DeltaSizes& sizes) {
  return sizes.Kp * sizes.Vp + C * C + C * kBlock + C * sizes.Vp + (sizes.per_channel ? C * C : 0);
}

ChunkSaved saved_at(const DeltaSizes& sizes, float* data) {
  ChunkSaved saved = {};
  saved.state = data;
  saved.lower = saved.state + sizes.Kp * sizes.Vp;
  saved.inverse = saved.lower + C * C;
  saved.values = saved.inverse + C * kBlock;
  saved.scores = sizes.per_channel ? saved.values + C * sizes.Vp : nullptr;
  return saved;
}

int64_t forward_workspace_floats(const DeltaSizes& sizes) {
  TileCutter cut(nullptr);
  cut_forward(sizes, cut);
  return cut.used();
}

int64_t backward_workspace_floats(const DeltaSizes& sizes) {
  TileCutter cut(nullptr);
  cut_backward(sizes, cut);
  return cut.used();
}

void delta_chunk_forward(const DeltaSizes& sizes, const ChunkInput& in, float* workspace,
                         float* state, const ChunkSaved& saved, float* out, int64_t out_stride) {
  TileCutter cut(workspace);
  const ForwardTiles t = cut_forward(sizes, cut);
  const SharedTiles& s = t.shared;
  const int64_t K = sizes.K;
  const int64_t Kp = sizes.Kp;
  const int64_t Vp = sizes.Vp;
  const int64_t n = round_up(in.num_rows, kBlock);
  const int64_t num_blocks = n / kBlock;
  float* scores = saved.scores != nullptr ? saved.scores : t.scores;
  load_shared(sizes, in, n, s);
  fill_scores(sizes, in, n, s.q, s.k, s.beta, s.decay, s.scores, scores, saved.lower);
  invert_diagonal_blocks(num_blocks, saved.lower, saved.inverse);

  load_tile(in.v, in.v_stride, in.num_rows, sizes.V, n, Vp, t.rest);
  small_gemm(Store::kSubtract, n, Vp, K, by_rows(s.k_plus, Kp), state, Vp, t.rest, Vp);
  for (int64_t i = 0; i < n; ++i) {
#pragma omp simd
    for (int64_t v = 0; v < Vp; ++v) t.rest[i * Vp + v] *= s.beta[i];
  }
  solve(sizes, num_blocks, saved, t.rest, saved.values);

  small_gemm(Store::kSet, n, Vp, K, by_rows(s.q_plus, Kp), state, Vp, t.out, Vp);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = block * kBlock;
    small_gemm(Store::kAdd, kBlock, Vp, first + kBlock, by_rows(scores + first * C, C),
               saved.values, Vp, t.out + first * Vp, Vp);
  }
  for (int64_t i = 0; i < in.num_rows; ++i) {
    std::memcpy(out + i * out_stride, t.out + i * Vp, static_cast<size_t>(sizes.V) * sizeof(float));
  }

  decay_state(sizes, s.decay, state);
  small_gemm(Store::kAdd, K, Vp, n, by_columns(s.k_end, Kp), saved.values, Vp, state, Vp);
}

void delta_chunk_backward(const DeltaSizes& sizes, const ChunkInput& in, float* workspace,
                          float* d_state, const ChunkSaved& saved,
                          const ChunkGradients& gradients) {
  TileCutter cut(workspace);
  const BackwardTiles t = cut_backward(sizes, cut);
  const SharedTiles& s = t.shared;
  const int64_t K = sizes.K;
  const int64_t Kp = sizes.Kp;
  const int64_t V = sizes.V;
  const int64_t Vp = sizes.Vp;
  const int64_t n = round_up(in.num_rows, kBlock);
  const int64_t num_blocks = n / kBlock;
  float* scores = sizes.per_channel ? saved.scores : t.scores;
  load_shared(sizes, in, n, s);
  fill_scores_again(sizes, in, n, s.q, s.k, s.decay, s.scores, scores);
  load_tile(gradients.d_out, gradients.d_out_stride, in.num_rows, V, n, Vp, t.d_out);
  load_tile(in.v, in.v_stride, in.num_rows, V, n, Vp, t.y);
  small_gemm(Store::kSubtract, n, Vp, K, by_rows(s.k_plus, Kp), saved.state, Vp, t.y, Vp);

  // dU, dR, dV
  small_gemm(Store::kSet, n, Vp, K, by_rows(s.k_end, Kp), d_state, Vp, t.d_values, Vp);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = block * kBlock;
    small_gemm(Store::kAdd, kBlock, Vp, n - first, by_columns(scores + first * C + first, C),
               t.d_out + first * Vp, Vp, t.d_values + first * Vp, Vp);
  }
  solve_transposed(sizes, num_blocks, saved, t.d_values, t.d_rest);
  for (int64_t i = 0; i < n; ++i) {
#pragma omp simd
    for (int64_t v = 0; v < Vp; ++v) t.dv[i * Vp + v] = s.beta[i] * t.d_rest[i * Vp + v];
  }

  // dP and dL
  transpose(saved.values, Vp, n, Vp, t.values_t, C);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = block * kBlock;
    const int64_t columns = first + kBlock;
    // In sums of 16 terms: the gradient of the gates is what remains of these after they cancel.
    for (int64_t v = 0; v < Vp; v += kLanes) {
      const Store store = v == 0 ? Store::kSet : Store::kAdd;
      small_gemm(store, kBlock, columns, kLanes, by_rows(t.d_out + first * Vp + v, Vp),
                 t.values_t + v * C, C, t.d_scores + first * C, C);
      small_gemm(store, kBlock, columns, kLanes, by_rows(t.d_rest + first * Vp + v, Vp),
                 t.values_t + v * C, C, t.d_lower + first * C, C);
    }
    for (int64_t i = first; i < first + kBlock; ++i) {
      float* d_scores = t.d_scores + i * C;
      float* d_lower = t.d_lower + i * C;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        const float d_score = d_scores[j];
        const float below = d_lower[j];
        d_scores[j] = j <= i ? d_score : 0.0F;
        d_lower[j] = j < i ? -below : 0.0F;
      }
    }
  }

  // The parts of dq and dk that go through the states.
  transpose(saved.state, Vp, Kp, Vp, t.state_t, Kp);
  small_gemm(Store::kSet, n, Kp, V, by_rows(t.d_out, Vp), t.state_t, Kp, t.dq, Kp);
  scale_tile(sizes, n, s.decay.from_start, in.scale, t.dq);
  small_gemm(Store::kSet, n, Kp, V, by_rows(t.dv, Vp), t.state_t, Kp, t.dk_row, Kp);
  scale_tile(sizes, n, s.decay.from_start, -1.0F, t.dk_row);
  transpose(d_state, Vp, Kp, Vp, t.state_t, Kp);
  small_gemm(Store::kSet, n, Kp, V, by_rows(saved.values, Vp), t.state_t, Kp, t.dk_end, Kp);
  scale_tile(sizes, n, s.decay.to_end, 1.0F, t.dk_end);

  // dS0
  fill_state_carry(sizes, s.decay, saved.state, d_state, t.state_carry);
  decay_state(sizes, s.decay, d_state);
  small_gemm(Store::kAdd, K, Vp, n, by_columns(s.q_plus, Kp), t.d_out, Vp, d_state, Vp);
  small_gemm(Store::kSubtract, K, Vp, n, by_columns(s.k_plus, Kp), t.dv, Vp, d_state, Vp);

  // t.dq and t.dk_row hold the state parts alone until
  // score_gradients adds the pairs within the chunk.
  std::fill(t.dg, t.dg + (sizes.per_channel ? n * Kp : n), 0.0);
  add_state_reads(sizes, n, t);
  add_state_writes(sizes, n, t);
  score_gradients(
      sizes, in.scale, n, s.q, s.k, s.beta, s.decay, s.scores,
      {t.d_scores, t.d_lower, scores, saved.lower, t.dq, t.r, t.dk_column, t.dg, t.work});
  write_gradients(sizes, in, t, gradients);
}

}  // namespace deltatrain::backend::cpu
