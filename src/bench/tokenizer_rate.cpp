#include "bench/tokenizer_rate.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <thread>
#include <vector>

namespace deltatrain::bench {

namespace {

double thread_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TokenizerRate time_tokenizer(const text::Tokenizer& tokenizer, std::span<const std::string> documents,
                             int num_threads) {
  TokenizerRate total;
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    const double begin = thread_cpu_seconds();
    int64_t bytes = 0;
    int64_t tokens = 0;
    std::vector<int32_t> ids;
    for (size_t i = next++; i < documents.size(); i = next++) {
      ids.clear();
      tokenizer.encode(documents[i], text::AddSpecialTokens::kNo, ids);
      bytes += static_cast<int64_t>(documents[i].size());
      tokens += static_cast<int64_t>(ids.size());
    }
    const double seconds = thread_cpu_seconds() - begin;
    const std::lock_guard lock(mutex);
    total.bytes += bytes;
    total.tokens += tokens;
    total.cpu_seconds += seconds;
  };
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  total.wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return total;
}

}  // namespace deltatrain::bench
