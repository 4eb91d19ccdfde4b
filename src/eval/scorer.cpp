#include "eval/scorer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "model/training_step.h"

namespace deltatrain::eval {

namespace {

constexpr int64_t kTileRows = 256;
constexpr int64_t kLogitRows = 64;
constexpr int64_t kAutoBatch = 16;  // more short sequences than fit a pass gain nothing

// Bytes of one sequence's state.
int64_t state_bytes(const ModelConfig& config, int64_t max_length, const Context& context) {
  const Model model(config);
  int64_t bytes = 0;
  for (const auto& shape : model.state_shapes(1, max_length)) {
    for (const Shape* part :
         {&shape.recurrent, &shape.qk_history, &shape.v_history, &shape.k_cache, &shape.v_cache}) {
      if (part->rank() > 0) bytes += part->num_elements() * dtype_bytes(context.statistics_dtype());
    }
  }
  return bytes;
}

int64_t choose_batch_size(const ScorerOptions& options, const ModelConfig& config,
                          const Context& context) {
  if (options.batch_size > 0) return std::min(options.batch_size, kTileRows);
  // Two states per sequence, in a quarter of what is free.
  const int64_t bytes = 2 * state_bytes(config, std::max(options.max_length, kTileRows), context);
  const int64_t room = context.device->free_memory_bytes() / 4 / std::max<int64_t>(1, bytes);
  return std::clamp<int64_t>(room, 1, kAutoBatch);
}

}  // namespace

// One call of score().
struct Scorer::Run {
  // A stretch of tokens that goes on from a state.
  struct Job {
    std::span<const int32_t> tokens;
    int64_t from = -1;  // context slot to go on from; -1: the start of a text
    int64_t to = -1;    // context slot for the state afterwards; -1: not needed
    bool last_row_only = false;
    // Requests whose tokens are looked for after the rows: all of a group after its context, one
    // after its own.
    std::vector<size_t> requests;
  };
  // A token whose log-probability a kept row gives.
  struct Target {
    int64_t row;
    size_t request;
    int64_t position;  // in the continuation
  };

  Scorer& scorer;
  decode::TileDecoder& decoder;
  std::span<const TokenRequest> requests;
  Reporter& reporter;
  std::vector<std::vector<float>> log_probabilities;
  std::vector<char> greedy;
  std::vector<Target> targets;
  int64_t num_kept = 0;
  int64_t num_done = 0;

  // The pass that is being filled.
  std::vector<const Job*> pass;
  std::vector<std::span<const int32_t>> pieces;
  int64_t pass_rows = 0;

  void keep(const Job& job, int64_t first_row, int64_t first_token, int64_t count) {
    const auto size = static_cast<int64_t>(job.tokens.size());
    if (job.last_row_only) {
      if (first_token + count < size) return;
      first_row += count - 1;
      first_token += count - 1;
      count = 1;
    }
    while (count > 0) {
      if (num_kept == kLogitRows) read_logits();
      const int64_t now = std::min(count, kLogitRows - num_kept);
      decoder.keep_rows(first_row, now, num_kept);
      for (int64_t i = 0; i < now; ++i) {
        for (const size_t request : job.requests)
          targets.push_back({num_kept + i, request, job.last_row_only ? 0 : first_token + i + 1});
      }
      num_kept += now;
      first_row += now;
      first_token += now;
      count -= now;
    }
  }

  void read_logits() {
    if (num_kept == 0) return;
    const auto logits = decoder.logits();
    const int64_t N = logits.logits_RN.size(1);
    const std::vector<double> lse = to_host(decoder.context(), logits.lse_R);
    // Host memory is read where it lies.
    std::vector<float> copy;
    const float* values = nullptr;
    if (decoder.context().device->kind() == DeviceKind::kCpu) {
      values = logits.logits_RN.data<float>();
    } else {
      const std::vector<double> wide = to_host(decoder.context(), logits.logits_RN);
      copy.assign(wide.begin(), wide.end());
      values = copy.data();
    }
    const bool rounds = scorer.options_.precision == ScorePrecision::kBF16;
    std::vector<float> rounded;
    int64_t rounded_row = -1;
    double row_lse = 0;
    for (const Target& target : targets) {
      const float* row = values + target.row * N;
      if (rounds) {
        if (target.row != rounded_row) {
          rounded.assign(row, row + N);
          row_lse = round_row(rounded);
          rounded_row = target.row;
        }
        row = rounded.data();
      } else {
        row_lse = lse[static_cast<size_t>(target.row)];
      }
      if (!std::isfinite(row_lse))
        throw NumericError(error_text("eval", "logits", "finite numbers", "NaN or infinity"));
      const TokenRequest& request = requests[target.request];
      const int32_t token = request.continuation[static_cast<size_t>(target.position)];
      const auto of = [&](float logit) {
        const auto value = static_cast<float>(static_cast<double>(logit) - row_lse);
        return rounds ? round_to_bf16(value) : value;
      };
      const float own = of(row[token]);
      log_probabilities[target.request][static_cast<size_t>(target.position)] = own;
      // The first of the most likely: nothing before the token is as likely, nothing after it more.
      const auto beaten = [&](float logit, bool by_equals) {
        return by_equals ? of(logit) >= own : of(logit) > own;
      };
      const float before = token == 0 ? row[0] : *std::max_element(row, row + token);
      const float after = *std::max_element(row + token, row + N);
      if ((token > 0 && beaten(before, true)) || beaten(after, false)) greedy[target.request] = 0;
    }
    targets.clear();
    num_kept = 0;
  }

  // Rounds a row of logits to bf16 and gives its log sum exp.
  static double round_row(std::vector<float>& row) {
    for (float& value : row) value = round_to_bf16(value);
    const float largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value - largest));
    return static_cast<double>(largest) + std::log(sum);
  }

  void feed(int64_t first_slot, std::span<const std::span<const int32_t>> parts) {
    decoder.feed(first_slot, parts);
    ++scorer.work_.passes;
    for (const auto& part : parts) scorer.work_.tokens += static_cast<int64_t>(part.size());
  }

  // Whole passes of a job alone, then its rest in the pass that is being filled.
  void add(const Job& job) {
    const auto size = static_cast<int64_t>(job.tokens.size());
    const int64_t whole = (size - 1) / kTileRows * kTileRows;
    if (pass_rows + size - whole > kTileRows ||
        static_cast<int64_t>(pass.size()) == scorer.batch_size_)
      run_pass();
    const auto slot = static_cast<int64_t>(pass.size());
    if (job.from >= 0) {
      decoder.state().copy_sequence(decoder.context(), *scorer.contexts_, job.from, slot);
    } else {
      decoder.state().reset_sequence(decoder.context(), slot);
    }
    for (int64_t begin = 0; begin < whole; begin += kTileRows) {
      const std::span<const int32_t> part =
          job.tokens.subspan(static_cast<size_t>(begin), kTileRows);
      feed(slot, {&part, 1});
      keep(job, 0, begin, kTileRows);
    }
    pass.push_back(&job);
    pieces.push_back(job.tokens.subspan(static_cast<size_t>(whole)));
    pass_rows += size - whole;
  }

  void run_pass() {
    if (pass.empty()) return;
    feed(0, pieces);
    int64_t row = 0;
    for (size_t i = 0; i < pass.size(); ++i) {
      const Job& job = *pass[i];
      const auto count = static_cast<int64_t>(pieces[i].size());
      keep(job, row, static_cast<int64_t>(job.tokens.size()) - count, count);
      row += count;
      if (job.to >= 0)
        scorer.contexts_->copy_sequence(decoder.context(), decoder.state(), static_cast<int64_t>(i),
                                        job.to);
    }
    pass.clear();
    pieces.clear();
    pass_rows = 0;
  }

  // Groups of requests with one context, at most batch_size of them.
  void run_batch(std::span<const std::vector<size_t>> groups) {
    std::vector<Job> contexts, continuations;
    for (size_t g = 0; g < groups.size(); ++g) {
      Job context{.tokens = requests[groups[g].front()].context,
                  .last_row_only = true,
                  .requests = groups[g]};
      for (const size_t i : groups[g]) {
        const std::vector<int32_t>& continuation = requests[i].continuation;
        if (continuation.size() < 2) continue;
        context.to = static_cast<int64_t>(g);
        continuations.push_back({.tokens = std::span(continuation).first(continuation.size() - 1),
                                 .from = static_cast<int64_t>(g),
                                 .requests = {i}});
      }
      contexts.push_back(std::move(context));
    }
    for (const std::vector<Job>* jobs : {&contexts, &continuations}) {
      for (const Job& job : *jobs) add(job);
      run_pass();
    }
    for (const auto& group : groups) num_done += static_cast<int64_t>(group.size());
    reporter.progress("eval", num_done, static_cast<int64_t>(requests.size()), "requests", "");
  }
};

Scorer::Scorer(const Context& context, const Context& planning_context, const ModelConfig& config,
               const ScorerOptions& options)
    : options_(options), batch_size_(choose_batch_size(options, config, context)) {
  decoder_ = std::make_unique<decode::TileDecoder>(
      context, planning_context, config,
      decode::TileDecoder::Sizes{batch_size_, options.max_length, kTileRows, kLogitRows});
  contexts_ = decoder_->make_state(batch_size_);
}

Scorer::~Scorer() = default;

std::vector<Score> Scorer::score(std::span<const TokenRequest> requests, Reporter& reporter) {
  const int64_t N = decoder_->model().config().vocab_size;
  work_ = {};
  Run run{.scorer = *this, .decoder = *decoder_, .requests = requests, .reporter = reporter};
  for (const TokenRequest& request : requests) {
    DELTATRAIN_CHECK(!request.context.empty() && !request.continuation.empty(), "tokens to score");
    for (const auto* ids : {&request.context, &request.continuation}) {
      for (const int32_t id : *ids) {
        if (id < 0 || id >= N)
          throw FormatError(error_text("tokenizer", "token id",
                                       "below the model's vocabulary size " + std::to_string(N),
                                       std::to_string(id)));
      }
    }
    run.log_probabilities.emplace_back(request.continuation.size());
    run.greedy.push_back(1);
    work_.tokens_unshared +=
        static_cast<int64_t>(request.context.size() + request.continuation.size()) - 1;
  }

  // By context, longest first.
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto &x = requests[a].context, &y = requests[b].context;
    return x.size() != y.size() ? x.size() > y.size() : x < y;
  });
  std::vector<std::vector<size_t>> groups;
  for (const size_t i : order) {
    if (groups.empty() || requests[groups.back().front()].context != requests[i].context)
      groups.emplace_back();
    groups.back().push_back(i);
  }
  work_.num_contexts = static_cast<int64_t>(groups.size());
  for (size_t begin = 0; begin < groups.size(); begin += static_cast<size_t>(batch_size_)) {
    const size_t count = std::min(groups.size() - begin, static_cast<size_t>(batch_size_));
    run.run_batch(std::span(groups).subspan(begin, count));
  }
  run.read_logits();

  std::vector<Score> scores;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<float>& parts = run.log_probabilities[i];
    const double sum = options_.precision == ScorePrecision::kBF16
                           ? sum_rounded_to_bf16(parts)
                           : std::accumulate(parts.begin(), parts.end(), 0.0);
    scores.push_back({sum, run.greedy[i] != 0});
  }
  return scores;
}

}  // namespace deltatrain::eval
