// Loops over threads, and sums whose order does not depend on how many threads there are.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"  // divide_up
#include "device/context.h"

namespace deltatrain::backend::cpu {

inline int max_threads() { return omp_get_max_threads(); }
inline int thread_index() { return omp_get_thread_num(); }

// Below this many elements a loop runs on the calling thread: waking the others costs microseconds.
inline constexpr int64_t kSerialElements = 16384;

// body(i) for every i in [0, count), each on some thread; on one only
// where that suffices. There is one copy of the body for all of this:
// two could be compiled to different roundings. `body` must not throw.
template <class Body>
void parallel_for(int64_t count, const Body& body, bool worth_threads = true) {
#pragma omp parallel for schedule(dynamic) if (worth_threads && count > 1)
  for (int64_t i = 0; i < count; ++i) body(i);
}

// body(begin, end) for blocks that cover [0, num_rows). Blocks hold about kSerialElements elements
// and do not depend on the number of threads.
template <class Body>
void parallel_rows(int64_t num_rows, int64_t elements_per_row, const Body& body) {
  const int64_t block =
      std::max<int64_t>(1, kSerialElements / std::max<int64_t>(1, elements_per_row));
  parallel_for(divide_up(num_rows, block),
               [&](int64_t b) { body(b * block, std::min(num_rows, (b + 1) * block)); });
}

// Flat ranges of [0, count); borders are multiples of 4096 elements.
template <class Body>
void parallel_elements(int64_t count, const Body& body) {
  constexpr int64_t kUnit = 4096;
  parallel_rows(divide_up(count, kUnit), kUnit, [&](int64_t begin, int64_t end) {
    body(begin * kUnit, std::min(count, end * kUnit));
  });
}

// Sums over rows (gradients of parameters): fixed blocks of rows are summed in f32, the blocks in
// order in f64. The partial sums of block b lie at partials + b * width.
inline constexpr int64_t kSumRows = 64;
inline int64_t num_sum_blocks(int64_t num_rows) { return divide_up(num_rows, kSumRows); }

// out[i] += sum over blocks of partials[b * width + i]
void add_partial_sums(const float* partials, int64_t num_blocks, int64_t width, float* out);

}  // namespace deltatrain::backend::cpu
