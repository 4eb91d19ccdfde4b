#include "eval/metrics.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>
#include <thread>

#include "base/check.h"
#include "eval/python_random.h"

namespace deltatrain::eval {

namespace {

double sum(std::span<const double> values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

double sum(std::span<const int64_t> values) {
  int64_t total = 0;
  for (const int64_t value : values) total += value;
  return static_cast<double>(total);
}

// With n - 1 in the denominator.
double deviation(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double middle = sum(values) / n;
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / (n - 1));
}

}  // namespace

int64_t best_choice(std::span<const double> scores) {
  size_t best = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return static_cast<int64_t>(i);
    if (scores[i] > scores[best]) best = i;
  }
  return static_cast<int64_t>(best);
}

int64_t best_choice_normalized(std::span<const double> scores, std::span<const int64_t> lengths) {
  DELTATRAIN_CHECK(scores.size() == lengths.size(), "one length per choice");
  std::vector<double> quotients;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (lengths[i] > 0) {
      quotients.push_back(scores[i] / static_cast<double>(lengths[i]));
    } else {  // an ending that became empty: x / 0
      quotients.push_back(scores[i] == 0
                              ? std::numeric_limits<double>::quiet_NaN()
                              : std::copysign(std::numeric_limits<double>::infinity(), scores[i]));
    }
  }
  return best_choice(quotients);
}

Estimate mean(std::span<const double> values) {
  Estimate result{sum(values) / static_cast<double>(values.size()), {}};
  if (values.size() > 1)
    result.stderr_value = deviation(values) / std::sqrt(static_cast<double>(values.size()));
  return result;
}

Estimate perplexity(std::span<const double> log_likelihoods, int64_t bootstrap_iters) {
  const auto n = static_cast<double>(log_likelihoods.size());
  Estimate result{std::exp(-sum(log_likelihoods) / n), {}};
  if (bootstrap_iters <= 0 || log_likelihoods.size() < 2) return result;
  const int64_t block = std::min<int64_t>(1000, bootstrap_iters);
  const int64_t num_blocks = bootstrap_iters / block;
  std::vector<double> replicates(static_cast<size_t>(num_blocks * block));
  std::atomic<int64_t> next_block = 0;
  const auto work = [&] {
    for (int64_t b = next_block++; b < num_blocks; b = next_block++) {
      PythonRandom random(static_cast<uint64_t>(b));
      for (int64_t i = 0; i < block; ++i) {
        double total = 0;
        for (size_t j = 0; j < log_likelihoods.size(); ++j)
          total += log_likelihoods[static_cast<size_t>(random.uniform() * n)];
        replicates[static_cast<size_t>(b * block + i)] = std::exp(-total / n);
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < std::min(16U, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (replicates.size() > 1) result.stderr_value = deviation(replicates);
  return result;
}

Estimate weighted_perplexity(std::span<const double> log_likelihoods,
                             std::span<const int64_t> weights) {
  return {std::exp(-sum(log_likelihoods) / sum(weights)), {}};
}

Estimate bits_per_byte(std::span<const double> log_likelihoods,
                       std::span<const int64_t> num_bytes) {
  return {-sum(log_likelihoods) / sum(num_bytes) / std::numbers::ln2, {}};
}

Estimate pooled(std::span<const Estimate> estimates, std::span<const int64_t> sizes) {
  DELTATRAIN_CHECK(estimates.size() == sizes.size() && !sizes.empty(), "one size per task");
  const double N = sum(sizes);
  double total = 0, variance = 0;
  bool has_error = true;
  for (size_t t = 0; t < sizes.size(); ++t) {
    const auto n = static_cast<double>(sizes[t]);
    total += n * estimates[t].value;
    has_error = has_error && estimates[t].stderr_value.has_value();
    const double e = estimates[t].stderr_value.value_or(0);
    variance += (n - 1) * e * e * n;
  }
  Estimate result{total / N, {}};
  if (has_error)
    result.stderr_value = std::sqrt(variance / (N - static_cast<double>(sizes.size())) / N);
  return result;
}

std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char text[64];
  const double size = std::fabs(value);
  const bool exponent = size < 1e-4 || size >= 1e16;
  const auto end =
      std::to_chars(text, text + sizeof text, value,
                    exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string result(text, end.ptr);
  if (!exponent && result.find('.') == std::string::npos) result += ".0";
  return result;
}

}  // namespace deltatrain::eval
