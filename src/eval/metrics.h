// From scores of documents to the numbers of a table.
//
// All sums run in the order of the documents, in f64. Source: the behaviour of
// lm-evaluation-harness 0.4.13.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace deltatrain::eval {

// A value with its standard error, which may not exist ("N/A").
struct Estimate {
  double value = 0;
  std::optional<double> stderr_value;
};

// The first maximum; the first NaN where there is one. `scores` is not empty.
int64_t best_choice(std::span<const double> scores);
// The same after dividing each score by its choice's length in characters.
int64_t best_choice_normalized(std::span<const double> scores, std::span<const int64_t> lengths);

// Mean, with the standard error sqrt(sum (x - mean)^2 / (n - 1) / n); none for n = 1.
Estimate mean(std::span<const double> values);

// exp(-mean of the log-likelihoods). The standard error is the deviation over `bootstrap_iters`
// resamples, drawn in blocks of up to 1000, block i with Python's generator seeded with i; none
// where bootstrap_iters is 0.
Estimate perplexity(std::span<const double> log_likelihoods, int64_t bootstrap_iters);

// exp(-sum of log-likelihoods / sum of weights); weights are counts of words or bytes. No standard
// error.
Estimate weighted_perplexity(std::span<const double> log_likelihoods,
                             std::span<const int64_t> weights);
// -sum of log-likelihoods / sum of bytes / log 2
Estimate bits_per_byte(std::span<const double> log_likelihoods, std::span<const int64_t> num_bytes);

// Accuracy of a group: the mean over all documents of its tasks, and the pooled standard error
// sqrt(sum (n_t - 1) n_t e_t^2 / (N - k) / N).
Estimate pooled(std::span<const Estimate> estimates, std::span<const int64_t> sizes);

// The digits that Python prints: the shortest that give the number back, with a fraction or an
// exponent.
std::string python_number(double value);

}  // namespace deltatrain::eval
