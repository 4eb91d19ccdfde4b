// The parts of a chunk of the delta rule that hold exponentials: decays, scores and their
// gradients. See delta_chunk.h for the equations.
#pragma once

#include "backend/cpu/delta_chunk.h"

namespace deltatrain::backend::cpu {

// Decays of a chunk. GDN: one number per row; KDA: Kp per row.
struct ChunkDecay {
  double* cumulative;  // G
  float* from_start;   // exp(G_i)
  float* to_end;       // exp(G_C - G_i)
  float* whole;        // exp(G_C): 1 or Kp numbers
};

// Rows past in.num_rows get no decay.
void fill_decay(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                const ChunkDecay& decay);

// Working memory of the scores; GDN uses pairwise alone.
struct ScoreTiles {
  float* pairwise;         // E [64, 64], zero above the diagonal (GDN)
  float* q_transposed;     // [Kp, 64] (KDA)
  float* k_transposed;     // [Kp, 64]
  float* step;             // exp(g) [64, Kp] (KDA)
  float* step_transposed;  // [Kp, 64] (KDA)
  float* row_factor;       // exp(G_i - G_n) [16, Kp] (KDA, as all below)
  float* row_q;            // scale q_i exp(G_i - G_n) [16, Kp]
  float* row_k;            // k_i exp(G_i - G_n) [16, Kp]
  float* column_factor;    // exp(G_n - G_j) [64, Kp]
  float* column_k;         // k_j exp(G_n - G_j) [64, Kp]
  float* block;            // [64, Kp] and at least [64, 64]
};

// scores = P, lower = L, from the padded tiles q and k [64, Kp]. GDN leaves E in tiles.pairwise.
void fill_scores(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows, const float* q,
                 const float* k, const float* beta, const ChunkDecay& decay,
                 const ScoreTiles& tiles, float* scores, float* lower);
// P and E alone, for the backward pass of GDN.
void fill_scores_again(const DeltaSizes& sizes, const ChunkInput& in, int64_t padded_rows,
                       const float* q, const float* k, const ChunkDecay& decay,
                       const ScoreTiles& tiles, float* scores);

struct ScoreGradients {
  const float* d_scores;  // dP [64, 64], zero above the diagonal
  const float* d_lower;   // dL [64, 64], zero on and above the diagonal
  const float* scores;    // P, GDN only
  const float* lower;     // L, GDN only
  float* dq;              // += [64, Kp]
  float* r;               // = r [64, Kp]
  float* dk_column;       // = [64, Kp], the last sum of dk
  double* dg;             // += pairs that cross step m: [64] or [64, Kp]
  float* work;            // score_work_floats(sizes)
};

int64_t score_work_floats(const DeltaSizes& sizes);

void score_gradients(const DeltaSizes& sizes, float scale, int64_t padded_rows, const float* q,
                     const float* k, const float* beta, const ChunkDecay& decay,
                     const ScoreTiles& tiles, const ScoreGradients& gradients);

}  // namespace deltatrain::backend::cpu
