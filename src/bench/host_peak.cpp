#include "bench/host_peak.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace deltatrain::bench {

namespace {

using Clock = std::chrono::steady_clock;

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

constexpr int kChains = 16;  // independent sums: enough to hide the latency of a multiply-add

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns something that depends on every product, so that none is left out.
__attribute__((noinline)) float fma_chains(int64_t rounds, float seed) {
  Lanes sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = Lanes{} + seed * static_cast<float>(c + 1);
  const Lanes factor = Lanes{} + 0.999F + seed * 1e-7F;
  const Lanes addend = Lanes{} + 0.001F;
  for (int64_t i = 0; i < rounds; ++i) {
    for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * factor + addend;
  }
  Lanes all = sums[0];
  for (int c = 1; c < kChains; ++c) all += sums[c];
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += all[l];
  return sum;
}

}  // namespace

double measure_fma_peak_tflops(int num_threads) {
  constexpr int64_t kRounds = 4'000'000;
  double best = 0;
  volatile float sink = 0;
  for (int run = 0; run < 7; ++run) {
    const auto start = Clock::now();
#pragma omp parallel num_threads(num_threads)
    {
      const float result = fma_chains(kRounds, static_cast<float>(omp_get_thread_num() + 1));
#pragma omp critical
      sink = sink + result;
    }
    const double flops = 2.0 * kRounds * kChains * kLanes * num_threads;
    best = std::max(best, flops / seconds_since(start) * 1e-12);
  }
  return best;
}

double measure_copy_gb_per_s(int num_threads) {
  constexpr size_t kBytes = size_t{256} << 20;
  const std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = Clock::now();
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (int64_t part = 0; part < 64; ++part) {
      const size_t size = kBytes / 64;
      std::memcpy(to.data() + static_cast<size_t>(part) * size,
                  from.data() + static_cast<size_t>(part) * size, size);
    }
    best = std::max(best, 2.0 * kBytes / seconds_since(start) * 1e-9);
  }
  return best;
}

}  // namespace deltatrain::bench
