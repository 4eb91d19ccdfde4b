#include "backend/cpu/delta_scores.h"

#include <algorithm>

#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t C = kChunk;

// Columns of row block I (16 I .. 16 I + 15)
// that a lower triangle needs, rounded up to whole vectors.
int64_t columns_of(int64_t block) { return (block + 1) * kBlock; }

// out = f32 of exp(a - b) over `count` channels; a is never above b.
void exp_of_difference(const double* a, const double* b, int64_t count, float* out) {
#pragma omp simd
  for (int64_t c = 0; c < count; ++c) out[c] = exp_f32(static_cast<float>(a[c] - b[c]));
}

void fill_decay_scalar(const ChunkInput& in, int64_t padded_rows, const ChunkDecay& decay) {
  double sum = 0;
  for (int64_t i = 0; i < padded_rows; ++i) {
    if (i < in.num_rows) sum += static_cast<double>(in.g[i * in.g_stride]);
    decay.cumulative[i] = sum;
  }
#pragma omp simd
  for (int64_t i = 0; i < padded_rows; ++i) {
    decay.from_start[i] = exp_f32(static_cast<float>(decay.cumulative[i]));
    decay.to_end[i] = exp_f32(static_cast<float>(sum - decay.cumulative[i]));
  }
  decay.whole[0] = exp_f32(static_cast<float>(sum));
}

void fill_decay_channels(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                         const ChunkDecay& decay) {
  const int64_t Kp = sizes.Kp;
  for (int64_t i = 0; i < padded_rows; ++i) {
    double* row = decay.cumulative + i * Kp;
    const double* before = i == 0 ? nullptr : row - Kp;
    const float* g = in.g + i * in.g_stride;
    for (int64_t c = 0; c < Kp; ++c) row[c] = before == nullptr ? 0.0 : before[c];
    if (i >= in.num_rows) continue;
#pragma omp simd
    for (int64_t c = 0; c < sizes.K; ++c) row[c] += static_cast<double>(g[c]);
  }
  const double* last = decay.cumulative + (padded_rows - 1) * Kp;
  for (int64_t i = 0; i < padded_rows; ++i) {
    const double* row = decay.cumulative + i * Kp;
#pragma omp simd
    for (int64_t c = 0; c < Kp; ++c)
      decay.from_start[i * Kp + c] = exp_f32(static_cast<float>(row[c]));
    exp_of_difference(last, row, Kp, decay.to_end + i * Kp);
  }
#pragma omp simd
  for (int64_t c = 0; c < Kp; ++c) decay.whole[c] = exp_f32(static_cast<float>(last[c]));
}

// ---- one decay per row (GDN)

void fill_pairwise(int64_t padded_rows, const double* cumulative, float* pairwise) {
  for (int64_t i = 0; i < padded_rows; ++i) {
    const int64_t columns = columns_of(i / kBlock);
    const double at_i = cumulative[i];
    float* row = pairwise + i * C;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float e = exp_f32(std::min(0.0F, static_cast<float>(at_i - cumulative[j])));
      row[j] = j <= i ? e : 0.0F;
    }
  }
}

// scores_ij = scale E_ij q_i . k_j
void scalar_scores(const DeltaSizes& sizes, float scale, int64_t padded_rows, const float* q,
                   const float* k_transposed, const float* pairwise, float* scores) {
  for (int64_t block = 0; block < padded_rows / kBlock; ++block) {
    const int64_t columns = columns_of(block);
    const int64_t first = block * kBlock;
    small_gemm(Store::kSet, kBlock, columns, sizes.K, by_rows(q + first * sizes.Kp, sizes.Kp),
               k_transposed, C, scores + first * C, C);
    for (int64_t i = first; i < first + kBlock; ++i) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        const float e = pairwise[i * C + j];
        scores[i * C + j] = j <= i ? scores[i * C + j] * scale * e : 0.0F;
      }
    }
  }
}

void scalar_lower(const DeltaSizes& sizes, int64_t padded_rows, const float* k,
                  const float* k_transposed, const float* beta, const float* pairwise,
                  float* lower) {
  for (int64_t block = 0; block < padded_rows / kBlock; ++block) {
    const int64_t columns = columns_of(block);
    const int64_t first = block * kBlock;
    small_gemm(Store::kSet, kBlock, columns, sizes.K, by_rows(k + first * sizes.Kp, sizes.Kp),
               k_transposed, C, lower + first * C, C);
    for (int64_t i = first; i < first + kBlock; ++i) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        const float e = pairwise[i * C + j];
        lower[i * C + j] = j < i ? lower[i * C + j] * beta[i] * e : 0.0F;
      }
    }
  }
}

void scalar_gradients(const DeltaSizes& sizes, float scale, int64_t padded_rows, const float* q,
                      const float* k, const float* beta, const ScoreTiles& tiles,
                      const ScoreGradients& out) {
  const int64_t Kp = sizes.Kp;
  const int64_t num_blocks = padded_rows / kBlock;
  float* score_weights = out.work;          // scale dP E
  float* lower_weights = out.work + C * C;  // dL E
  float* pairs = out.work + 2 * C * C;      // what each pair i > j adds to every g_m between them
  for (int64_t i = 0; i < padded_rows; ++i) {
    const int64_t columns = columns_of(i / kBlock);
    const int64_t row = i * C;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float e = tiles.pairwise[row + j];
      const float d_score = out.d_scores[row + j];
      const float d_lower = out.d_lower[row + j];
      score_weights[row + j] = scale * d_score * e;
      lower_weights[row + j] = d_lower * e;
      const float score = out.scores[row + j];
      pairs[row + j] = (j < i ? d_score * score : 0.0F) + d_lower * out.lower[row + j];
    }
  }
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = block * kBlock;
    const int64_t columns = columns_of(block);
    small_gemm(Store::kAdd, kBlock, Kp, columns, by_rows(score_weights + first * C, C), k, Kp,
               out.dq + first * Kp, Kp);
    small_gemm(Store::kSet, kBlock, Kp, columns, by_rows(lower_weights + first * C, C), k, Kp,
               out.r + first * Kp, Kp);
  }
  // dL E is now weighted by beta for the column sums.
  for (int64_t i = 0; i < padded_rows; ++i) {
    const int64_t columns = columns_of(i / kBlock);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) lower_weights[i * C + j] *= beta[i];
  }
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = block * kBlock;
    const int64_t rows = padded_rows - first;
    float* to = out.dk_column + first * Kp;
    small_gemm(Store::kSet, kBlock, Kp, rows, by_columns(score_weights + first * C + first, C),
               q + first * Kp, Kp, to, Kp);
    small_gemm(Store::kAdd, kBlock, Kp, rows, by_columns(lower_weights + first * C + first, C),
               k + first * Kp, Kp, to, Kp);
  }
  // dg_m = sum over i >= m > j of pairs_ij: column sums
  // over i grow as m falls, then add those of j < m.
  double column_sums[C] = {};
  for (int64_t m = padded_rows - 1; m >= 0; --m) {
    const int64_t columns = columns_of(m / kBlock);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) column_sums[j] += static_cast<double>(pairs[m * C + j]);
    out.dg[m] += sum_over_f64(m, [&](int64_t j) { return column_sums[j]; });
  }
}

// ---- one decay per channel (KDA)

// Row and column factors of block I relative to its first row n, and the tiles scaled by them.
void fill_factors(const DeltaSizes& sizes, float scale, int64_t block, const float* q,
                  const float* k, const ChunkDecay& decay, const ScoreTiles& tiles) {
  const int64_t Kp = sizes.Kp;
  const int64_t first = block * kBlock;
  const double* at_first = decay.cumulative + first * Kp;
  for (int64_t i = 0; i < kBlock; ++i) {
    float* factor = tiles.row_factor + i * Kp;
    exp_of_difference(at_first + i * Kp, at_first, Kp, factor);
    const float* q_row = q + (first + i) * Kp;
    const float* k_row = k + (first + i) * Kp;
#pragma omp simd
    for (int64_t c = 0; c < Kp; ++c) {
      tiles.row_q[i * Kp + c] = scale * q_row[c] * factor[c];
      tiles.row_k[i * Kp + c] = k_row[c] * factor[c];
    }
  }
  for (int64_t j = 0; j < first; ++j) {
    float* factor = tiles.column_factor + j * Kp;
    exp_of_difference(at_first, decay.cumulative + j * Kp, Kp, factor);
#pragma omp simd
    for (int64_t c = 0; c < Kp; ++c) tiles.column_k[j * Kp + c] = k[j * Kp + c] * factor[c];
  }
}

void fill_steps(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                const ScoreTiles& tiles) {
  const int64_t Kp = sizes.Kp;
  for (int64_t i = 0; i < padded_rows; ++i) {
    float* step = tiles.step + i * Kp;
    std::fill(step, step + Kp, 1.0F);
    if (i >= in.num_rows) continue;
    const float* g = in.g + i * in.g_stride;
#pragma omp simd
    for (int64_t c = 0; c < sizes.K; ++c) step[c] = exp_f32(g[c]);
  }
}

struct LaneUnits {
  alignas(64) float rows[kBlock][kLanes];
};
constexpr LaneUnits make_lane_units() {
  LaneUnits units{};
  for (int64_t i = 0; i < kBlock; ++i) units.rows[i][i] = 1.0F;
  return units;
}
constexpr LaneUnits kLaneUnits = make_lane_units();

// Columns kTop .. kTop - 7 of a diagonal block, for scores and lower at once.
// Lanes are rows i; for each channel E runs from its last column
// to its first, e_j = e_{j+1} exp(g_{j+1}) with a 1 for row j.
template <int kTop>
void diagonal_columns(const DeltaSizes& sizes, const float* q_transposed, const float* k_transposed,
                      const float* k, const float* step_transposed, float* scores_columns,
                      float* lower_columns) {
  constexpr int kCount = 8;
  Lanes score[kCount] = {};
  Lanes lower[kCount] = {};
  for (int64_t c = 0; c < sizes.K; ++c) {
    const Lanes q_lanes = load(q_transposed + c * C);
    const Lanes k_lanes = load(k_transposed + c * C);
    const float* step = step_transposed + c * C;
    Lanes e = {};
    if constexpr (kTop < kBlock - 1) {
      e = load(kLaneUnits.rows[kBlock - 1]);
#pragma GCC unroll 8
      for (int j = kBlock - 2; j > kTop; --j)
        e = e * broadcast(step[j + 1]) + load(kLaneUnits.rows[j]);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kCount; ++n) {
      const int j = kTop - n;
      if (j == kBlock - 1) {
        e = load(kLaneUnits.rows[j]);
      } else {
        e = e * broadcast(step[j + 1]) + load(kLaneUnits.rows[j]);
      }
      const Lanes weighted = e * broadcast(k[j * sizes.Kp + c]);
      score[n] += q_lanes * weighted;
      lower[n] += k_lanes * weighted;
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kCount; ++n) {
    store(scores_columns + (kTop - n) * kLanes, score[n]);
    store(lower_columns + (kTop - n) * kLanes, lower[n]);
  }
}

void channel_scores(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                    const float* q, const float* k, const float* beta, const ChunkDecay& decay,
                    const ScoreTiles& tiles, float* scores, float* lower) {
  const int64_t Kp = sizes.Kp;
  fill_steps(sizes, in, padded_rows, tiles);
  transpose(q, Kp, padded_rows, Kp, tiles.q_transposed, C);
  transpose(k, Kp, padded_rows, Kp, tiles.k_transposed, C);
  transpose(tiles.step, Kp, padded_rows, Kp, tiles.step_transposed, C);
  alignas(64) float columns[2][kBlock * kLanes];
  for (int64_t block = 0; block < padded_rows / kBlock; ++block) {
    const int64_t first = block * kBlock;
    diagonal_columns<15>(sizes, tiles.q_transposed + first, tiles.k_transposed + first,
                         k + first * Kp, tiles.step_transposed + first, columns[0], columns[1]);
    diagonal_columns<7>(sizes, tiles.q_transposed + first, tiles.k_transposed + first,
                        k + first * Kp, tiles.step_transposed + first, columns[0], columns[1]);
    transpose(columns[0], kLanes, kBlock, kLanes, scores + first * C + first, C);
    transpose(columns[1], kLanes, kBlock, kLanes, lower + first * C + first, C);
    if (block > 0) {
      fill_factors(sizes, in.scale, block, q, k, decay, tiles);
      transpose(tiles.column_k, Kp, first, Kp, tiles.block, C);
      small_gemm(Store::kSet, kBlock, first, sizes.K, by_rows(tiles.row_q, Kp), tiles.block, C,
                 scores + first * C, C);
      small_gemm(Store::kSet, kBlock, first, sizes.K, by_rows(tiles.row_k, Kp), tiles.block, C,
                 lower + first * C, C);
    }
    for (int64_t i = first; i < first + kBlock; ++i) {
#pragma omp simd
      for (int64_t j = first; j < first + kBlock; ++j) {
        const float score = scores[i * C + j];
        const float below = lower[i * C + j];
        scores[i * C + j] = j <= i ? in.scale * score : 0.0F;
        lower[i * C + j] = j < i ? below : 0.0F;
      }
#pragma omp simd
      for (int64_t j = 0; j < first + kBlock; ++j) lower[i * C + j] *= beta[i];
    }
  }
}

// Pairs inside the diagonal block that starts at row `first`. Lanes are channels, kLanes at a time.
void diagonal_gradients(const DeltaSizes& sizes, float scale, int64_t first, const float* q,
                        const float* k, const float* beta, const ScoreTiles& tiles,
                        const ScoreGradients& out) {
  const int64_t Kp = sizes.Kp;
  for (int64_t channel = 0; channel < Kp; channel += kLanes) {
    const int64_t base = first * Kp + channel;
    Lanes dg[kBlock] = {};
    for (int64_t j = 0; j < kBlock; ++j) {
      const Lanes k_j = load(k + base + j * Kp);
      const float own = scale * out.d_scores[(first + j) * C + first + j];
      float* dq_j = out.dq + base + j * Kp;
      store(dq_j, load(dq_j) + own * k_j);
      Lanes column = own * load(q + base + j * Kp);
      Lanes e = broadcast(1.0F);
      Lanes crossing[kBlock];
      for (int64_t i = j + 1; i < kBlock; ++i) {
        e *= load(tiles.step + base + i * Kp);
        const float d_score = scale * out.d_scores[(first + i) * C + first + j];
        const float d_lower = out.d_lower[(first + i) * C + first + j];
        const Lanes decayed_k = k_j * e;
        float* dq_i = out.dq + base + i * Kp;
        float* r_i = out.r + base + i * Kp;
        store(dq_i, load(dq_i) + d_score * decayed_k);
        store(r_i, load(r_i) + d_lower * decayed_k);
        const Lanes from_i = d_score * load(q + base + i * Kp) +
                             (beta[first + i] * d_lower) * load(k + base + i * Kp);
        column += from_i * e;
        crossing[i] = from_i * decayed_k;
      }
      Lanes sum = {};
      for (int64_t i = kBlock - 1; i > j; --i) {
        sum += crossing[i];
        dg[i] += sum;
      }
      float* dk_j = out.dk_column + base + j * Kp;
      store(dk_j, load(dk_j) + column);
    }
    for (int64_t i = 0; i < kBlock; ++i) {
      alignas(64) float row[kLanes];
      store(row, dg[i]);
      for (int64_t lane = 0; lane < kLanes; ++lane)
        out.dg[base + i * Kp + lane] += static_cast<double>(row[lane]);
    }
  }
}

// Pairs of row block I with all earlier rows, through the first row n of I.
void factored_gradients(const DeltaSizes& sizes, float scale, int64_t block, const float* beta,
                        const ScoreTiles& tiles, const ScoreGradients& out) {
  const int64_t Kp = sizes.Kp;
  const int64_t first = block * kBlock;
  const float* d_scores = out.d_scores + first * C;
  const float* d_lower = out.d_lower + first * C;
  float* row_dq = out.work;                                         // [16, Kp]
  float* row_r = row_dq + kBlock * Kp;                              // [16, Kp]
  float* weighted = row_r + kBlock * Kp;                            // beta dL [16, 64]
  double* sums = reinterpret_cast<double*>(weighted + kBlock * C);  // [Kp]
  float* column = tiles.block;                                      // [64, Kp]
  small_gemm(Store::kSet, kBlock, Kp, first, by_rows(d_scores, C), tiles.column_k, Kp, row_dq, Kp);
  small_gemm(Store::kSet, kBlock, Kp, first, by_rows(d_lower, C), tiles.column_k, Kp, row_r, Kp);
  for (int64_t i = 0; i < kBlock; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < first; ++j) weighted[i * C + j] = beta[first + i] * d_lower[i * C + j];
  }
  small_gemm(Store::kSet, first, Kp, kBlock, by_columns(d_scores, C), tiles.row_q, Kp, column, Kp);
  small_gemm(Store::kAdd, first, Kp, kBlock, by_columns(weighted, C), tiles.row_k, Kp, column, Kp);

  // Rows of the block: every pair of row i crosses the steps n + 1 .. i of the block.
  std::fill(sums, sums + Kp, 0.0);
  for (int64_t i = kBlock - 1; i >= 0; --i) {
    const int64_t row = (first + i) * Kp;
    const float row_beta = beta[first + i];
#pragma omp simd
    for (int64_t c = 0; c < Kp; ++c) {
      const float dq = row_dq[i * Kp + c] * tiles.row_factor[i * Kp + c];
      const float r = row_r[i * Kp + c] * tiles.row_factor[i * Kp + c];
      out.dq[row + c] += scale * dq;
      out.r[row + c] += r;
      // row_q and row_k hold scale q and k times the factor.
      sums[c] += static_cast<double>(tiles.row_q[i * Kp + c] * row_dq[i * Kp + c] +
                                     row_beta * (tiles.row_k[i * Kp + c] * row_r[i * Kp + c]));
      if (i > 0) out.dg[row + c] += sums[c];
    }
  }
  // Earlier rows: the pairs of row j cross the steps j + 1 .. n.
  std::fill(sums, sums + Kp, 0.0);
  for (int64_t j = 0; j < first; ++j) {
#pragma omp simd
    for (int64_t c = 0; c < Kp; ++c) {
      out.dk_column[j * Kp + c] += column[j * Kp + c] * tiles.column_factor[j * Kp + c];
      sums[c] += static_cast<double>(column[j * Kp + c] * tiles.column_k[j * Kp + c]);
      out.dg[(j + 1) * Kp + c] += sums[c];
    }
  }
}

void channel_gradients(const DeltaSizes& sizes, float scale, int64_t padded_rows, const float* q,
                       const float* k, const float* beta, const ChunkDecay& decay,
                       const ScoreTiles& tiles, const ScoreGradients& out) {
  const int64_t count = padded_rows * sizes.Kp;
  std::fill(out.r, out.r + count, 0.0F);
  std::fill(out.dk_column, out.dk_column + count, 0.0F);
  for (int64_t block = 0; block < padded_rows / kBlock; ++block) {
    diagonal_gradients(sizes, scale, block * kBlock, q, k, beta, tiles, out);
    if (block == 0) continue;
    fill_factors(sizes, scale, block, q, k, decay, tiles);
    factored_gradients(sizes, scale, block, beta, tiles, out);
  }
}

}  // namespace

void fill_decay(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                const ChunkDecay& decay) {
  if (sizes.per_channel) {
    fill_decay_channels(sizes, in, padded_rows, decay);
  } else {
    fill_decay_scalar(in, padded_rows, decay);
  }
}

void fill_scores(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows, const float* q,
                 const float* k, const float* beta, const ChunkDecay& decay,
                 const ScoreTiles& tiles, float* scores, float* lower) {
  if (sizes.per_channel) {
    channel_scores(sizes, in, padded_rows, q, k, beta, decay, tiles, scores, lower);
    return;
  }
  fill_pairwise(padded_rows, decay.cumulative, tiles.pairwise);
  transpose(k, sizes.Kp, padded_rows, sizes.Kp, tiles.k_transposed, C);
  scalar_scores(sizes, in.scale, padded_rows, q, tiles.k_transposed, tiles.pairwise, scores);
  scalar_lower(sizes, padded_rows, k, tiles.k_transposed, beta, tiles.pairwise, lower);
}

void fill_scores_again(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                       const float* q, const float* k, const ChunkDecay& decay,
                       const ScoreTiles& tiles, float* scores) {
  if (sizes.per_channel) {
    fill_steps(sizes, in, padded_rows, tiles);
    return;
  }
  fill_pairwise(padded_rows, decay.cumulative, tiles.pairwise);
  transpose(k, sizes.Kp, padded_rows, sizes.Kp, tiles.k_transposed, C);
  scalar_scores(sizes, in.scale, padded_rows, q, tiles.k_transposed, tiles.pairwise, scores);
}

int64_t score_work_floats(const DeltaSizes& sizes) {
  return std::max(3 * C * C, 2 * kBlock * sizes.Kp + kBlock * C + 2 * sizes.Kp);
}

void score_gradients(const DeltaSizes& sizes, float scale, int64_t padded_rows, const float* q,
                     const float* k, const float* beta, const ChunkDecay& decay,
                     const ScoreTiles& tiles, const ScoreGradients& gradients) {
  if (sizes.per_channel) {
    channel_gradients(sizes, scale, padded_rows, q, k, beta, decay, tiles, gradients);
  } else {
    scalar_gradients(sizes, scale, padded_rows, q, k, beta, tiles, gradients);
  }
}

}  // namespace deltatrain::backend::cpu
