#include "verify/model_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "model/training_step.h"

namespace deltatrain::verify {

namespace {

constexpr size_t kGreedyTokens = 40;

std::vector<int32_t> largest(const float* logits, int64_t num, size_t count) {
  std::vector<int32_t> order(static_cast<size_t>(num));
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [logits](int32_t a, int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  order.resize(count);
  return order;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

double next_token_loss(const float* logits, int64_t num, int32_t target) {
  const float top = *std::max_element(logits, logits + num);
  double sum = 0;
  for (int64_t i = 0; i < num; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  return std::log(sum) + top - logits[target];
}

}  // namespace

const std::vector<std::string>& standard_prompts() {
  static const std::vector<std::string> prompts = {"The capital of France is",
                                                   "Machine learning is a field of",
                                                   "The largest planet in our solar system is"};
  return prompts;
}

void check_weights_finite(const ModelRunner& runner, const Context& context) {
  for (const auto& info : runner.parameters().infos()) {
    for (const double value : to_host(context, runner.parameters().master(info))) {
      if (!std::isfinite(value)) {
        throw CheckFailedError(error_text(runner.folder().string(), info.name, "finite numbers",
                                          fmt::format("{}", value)));
      }
    }
  }
}

PromptReport check_prompt(ModelRunner& runner, const Prompt& prompt,
                          const std::function<bool(int32_t)>& is_end, double max_loss) {
  const int64_t N = runner.config().vocab_size;
  PromptReport report;
  report.text = prompt.text;
  report.num_tokens = static_cast<int64_t>(prompt.ids.size());
  bool finite = true;
  runner.run(prompt.ids);
  for (int64_t begin = 0; begin < report.num_tokens; begin += ModelRunner::kChunk) {
    const int64_t end = std::min(report.num_tokens, begin + ModelRunner::kChunk);
    const std::vector<float> logits = runner.logits(begin, end);
    finite = finite && all_finite(logits);
    for (int64_t i = begin; i < end && i + 1 < report.num_tokens; ++i) {
      report.loss += next_token_loss(logits.data() + (i - begin) * N, N,
                                     prompt.ids[static_cast<size_t>(i) + 1]);
    }
    if (end == report.num_tokens)
      report.top5 = largest(logits.data() + (end - 1 - begin) * N, N, 5);
  }
  report.loss /= static_cast<double>(std::max<int64_t>(1, report.num_tokens - 1));

  std::vector<int32_t> text = prompt.ids;
  int32_t next = report.top5.front();
  while (finite && report.greedy.size() < kGreedyTokens && !is_end(next)) {
    report.greedy.push_back(next);
    text.push_back(next);
    runner.run(text);
    const std::vector<float> logits =
        runner.logits(static_cast<int64_t>(text.size()) - 1, static_cast<int64_t>(text.size()));
    finite = all_finite(logits);
    next = largest(logits.data(), N, 1).front();
  }
  report.passed = finite && std::isfinite(report.loss) && report.loss < max_loss;
  return report;
}

Agreement compare(ModelRunner& model, ModelRunner& other, const std::vector<Prompt>& rows,
                  Reporter& reporter) {
  const int64_t N = model.config().vocab_size;
  if (other.config().vocab_size != N) {
    throw CheckFailedError(error_text(other.folder().string(), "vocab_size", std::to_string(N),
                                      std::to_string(other.config().vocab_size)));
  }
  Agreement agreement;
  double squared_difference = 0, squared_norm = 0;
  int64_t total = 0;
  for (const Prompt& row : rows) total += static_cast<int64_t>(row.ids.size());
  for (const Prompt& row : rows) {
    model.run(row.ids);
    other.run(row.ids);
    const auto length = static_cast<int64_t>(row.ids.size());
    for (int64_t begin = 0; begin < length; begin += ModelRunner::kChunk) {
      const int64_t end = std::min(length, begin + ModelRunner::kChunk);
      const std::vector<float> a = model.logits(begin, end), b = other.logits(begin, end);
      agreement.finite = agreement.finite && all_finite(a) && all_finite(b);
      for (int64_t i = 0; i < end - begin; ++i) {
        const float* x = a.data() + i * N;
        const float* y = b.data() + i * N;
        double xx = 0, yy = 0, xy = 0, dd = 0;
        for (int64_t n = 0; n < N; ++n) {
          const double p = x[n], q = y[n];
          xx += p * p;
          yy += q * q;
          xy += p * q;
          dd += (p - q) * (p - q);
          agreement.max_difference = std::max(agreement.max_difference, std::abs(p - q));
        }
        squared_difference += dd;
        squared_norm += yy;
        // Against a row of zeros the cosine has no value: it must not pass as equal.
        const double cosine = xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : xx == yy ? 1 : 0;
        agreement.min_cosine = std::min(agreement.min_cosine, cosine);
        std::vector<int32_t> top_x = largest(x, N, 5), top_y = largest(y, N, 5);
        agreement.same_top1 += top_x.front() == top_y.front() ? 1 : 0;
        std::sort(top_x.begin(), top_x.end());
        std::sort(top_y.begin(), top_y.end());
        agreement.same_top5 += top_x == top_y ? 1 : 0;
        ++agreement.positions;
      }
      reporter.progress("verify", agreement.positions, total, "positions", "");
    }
  }
  agreement.relative_difference =
      squared_norm > 0 ? std::sqrt(squared_difference / squared_norm) : 0;
  return agreement;
}

std::string disagreement(const Agreement& agreement, const AgreementLimits& limits) {
  const auto share = [&](int64_t count) {
    return static_cast<double>(count) /
           static_cast<double>(std::max<int64_t>(1, agreement.positions));
  };
  if (!agreement.finite) return "logits: expected finite numbers, got others";
  // Written so that NaN fails too.
  if (!(agreement.max_difference <= limits.max_difference)) {
    return fmt::format("largest difference of logits: expected at most {:g}, got {:g}",
                       limits.max_difference, agreement.max_difference);
  }
  if (!(agreement.min_cosine >= limits.min_cosine)) {
    return fmt::format("smallest cosine of logits: expected at least {:g}, got {:.6f}",
                       limits.min_cosine, agreement.min_cosine);
  }
  if (!(share(agreement.same_top1) >= limits.min_top1_share)) {
    return fmt::format("positions with the same most likely token: expected {:.2f} %, got {:.2f} %",
                       100 * limits.min_top1_share, 100 * share(agreement.same_top1));
  }
  if (!(share(agreement.same_top5) >= limits.min_top5_share)) {
    return fmt::format(
        "positions with the same five most likely tokens: expected {:.2f} %, got {:.2f} %",
        100 * limits.min_top5_share, 100 * share(agreement.same_top5));
  }
  return "";
}

}  // namespace deltatrain::verify
