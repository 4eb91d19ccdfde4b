#include "eval/scorer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::eval {

namespace {

// Rows of a pass and of a call of the head, and sequences at a time: numbers that do not depend on what is scored, so
// that scores do not either.
struct PassSizes {
  int64_t tile_rows;
  int64_t logit_rows;
  int64_t auto_batch;  // more short sequences than fit a pass gain nothing
};

PassSizes pass_sizes(const ScorerOptions& options, const ModelConfig& config,
                     const Context& context) {
  constexpr int64_t kSmallTile = 256;
  if (context.device->kind() != DeviceKind::kCuda) return {kSmallTile, 64, 16};
  // Enough rows to keep a large device busy. A sequence that fills a pass up has a cache as long as the pass.
  constexpr int64_t kLargeTile = 8192;
  const int64_t longest = std::max(kSmallTile, options.max_length / kSmallTile * kSmallTile);
  return {config.attn ? std::min(kLargeTile, longest) : kLargeTile, 4096, 1024};
}

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
  const PassSizes sizes = pass_sizes(options, config, context);
  // A pass of one token per sequence, the one that fills it up included, would be another kind of pass.
  const int64_t most = sizes.tile_rows - 2;
  if (options.batch_size > 0) return std::min(options.batch_size, most);
  // Two states per sequence, in a quarter of what is free.
  const int64_t bytes =
      2 * state_bytes(config, std::max(options.max_length, sizes.tile_rows), context);
  const int64_t room = context.device->free_memory_bytes() / 4 / std::max<int64_t>(1, bytes);
  return std::clamp<int64_t>(room, 1, sizes.auto_batch);
}

}  // namespace

// One call of score(): contexts and continuations go into passes in the order in which they become possible.
struct Scorer::Run {
  // Requests with one context.
  struct Group {
    std::vector<size_t> requests;
    int32_t slot = -1;        // of contexts_, while continuations go on from it
    int64_t num_waiting = 0;  // continuations that have not run
  };
  // A stretch of tokens that goes on from a state: a group's context, or a continuation without its last token.
  struct Job {
    size_t group;
    std::optional<size_t> request;  // none: the context
    std::span<const int32_t> tokens;
  };
  // A token whose log-probability a kept row gives.
  struct Target {
    size_t request;
    size_t position;  // in the continuation
  };

  Scorer& scorer;
  decode::TileDecoder& decoder;
  std::span<const TokenRequest> requests;
  Reporter& reporter;
  std::vector<Group> groups;
  std::vector<std::vector<float>> log_probabilities;
  std::vector<char> greedy;
  int64_t num_done = 0;

  std::vector<Target> targets;
  std::vector<int32_t> target_rows, target_ids;
  int64_t num_kept = 0;           // rows of the head that are taken
  std::vector<int32_t> new_rows;  // of the last pass, to be kept as the last ones of them

  std::deque<Job> ready;
  std::vector<int32_t> free_slots;
  // The pass that is being filled.
  std::vector<Job> pass;
  std::vector<std::span<const int32_t>> pieces;
  std::vector<int32_t> from, to;  // states that its sequences go on from
  int64_t pass_rows = 0;

  int64_t tile_rows() const { return decoder.sizes().tile_rows; }

  // Rows [first_row, first_row + count) of the last pass, which hold the job's tokens from `first_token` on.
  void keep(const Job& job, int64_t first_row, int64_t first_token, int64_t count) {
    if (!job.request) {
      if (first_token + count == static_cast<int64_t>(job.tokens.size()))
        keep_row(first_row + count - 1, groups[job.group].requests, 0);
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      keep_row(first_row + i, {&*job.request, 1}, static_cast<size_t>(first_token + i + 1));
  }

  void keep_row(int64_t row, std::span<const size_t> of_requests, size_t position) {
    if (num_kept == decoder.sizes().logit_rows) read_scores();
    for (const size_t request : of_requests) {
      targets.push_back({request, position});
      target_rows.push_back(narrow<int32_t>(num_kept));
      target_ids.push_back(requests[request].continuation[position]);
    }
    new_rows.push_back(narrow<int32_t>(row));
    ++num_kept;
  }

  // Before the next pass overwrites them.
  void take_new_rows() {
    decoder.keep_rows(new_rows, num_kept - static_cast<int64_t>(new_rows.size()));
    new_rows.clear();
  }

  void read_scores() {
    take_new_rows();
    const auto rounding = scorer.options_.precision == ScorePrecision::kBF16
                              ? ops::TokenScores::Rounding::kBf16
                              : ops::TokenScores::Rounding::kNone;
    const auto scores = decoder.scores(target_rows, target_ids, rounding);
    for (size_t i = 0; i < targets.size(); ++i) {
      if (std::isnan(scores[i].log_probability))
        throw NumericError(error_text("eval", "logits", "finite numbers", "NaN or infinity"));
      log_probabilities[targets[i].request][targets[i].position] = scores[i].log_probability;
      if (!scores[i].is_greedy) greedy[targets[i].request] = 0;
    }
    targets.clear();
    target_rows.clear();
    target_ids.clear();
    num_kept = 0;
  }

  void feed(int64_t first_slot, std::span<const std::span<const int32_t>> parts) {
    decoder.feed(first_slot, parts);
    ++scorer.work_.passes;
    for (const auto& part : parts) scorer.work_.tokens += static_cast<int64_t>(part.size());
  }

  // Tokens that go through in whole passes of their own; the rest joins the pass that is being filled.
  int64_t tokens_in_whole_passes(const Job& job) const {
    return (static_cast<int64_t>(job.tokens.size()) - 1) / tile_rows() * tile_rows();
  }

  bool fits(const Job& job) const {
    const int64_t rest = static_cast<int64_t>(job.tokens.size()) - tokens_in_whole_passes(job);
    return pass_rows + rest <= tile_rows() &&
           static_cast<int64_t>(pass.size()) < scorer.batch_size_;
  }

  void add(const Job& job) {
    const int64_t whole = tokens_in_whole_passes(job);
    const auto slot = narrow<int32_t>(static_cast<int64_t>(pass.size()));
    const int32_t source = job.request ? groups[job.group].slot : -1;
    if (whole == 0) {
      from.push_back(source);
      to.push_back(slot);
    } else {
      decoder.state().copy_sequences(decoder.context(), *scorer.contexts_, {&source, 1},
                                     {&slot, 1});
    }
    for (int64_t begin = 0; begin < whole; begin += tile_rows()) {
      const std::span<const int32_t> part =
          job.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(tile_rows()));
      feed(slot, {&part, 1});
      keep(job, 0, begin, tile_rows());
      take_new_rows();
    }
    pass.push_back(job);
    pieces.push_back(job.tokens.subspan(static_cast<size_t>(whole)));
    pass_rows += static_cast<int64_t>(job.tokens.size()) - whole;
  }

  void run_pass() {
    decoder.state().copy_sequences(decoder.context(), *scorer.contexts_, from, to);
    feed(0, pieces);
    from.clear();
    to.clear();
    int64_t row = 0;
    for (size_t i = 0; i < pass.size(); ++i) {
      const Job& job = pass[i];
      const auto count = static_cast<int64_t>(pieces[i].size());
      keep(job, row, static_cast<int64_t>(job.tokens.size()) - count, count);
      row += count;
      finish(job, narrow<int32_t>(static_cast<int64_t>(i)));
    }
    take_new_rows();
    scorer.contexts_->copy_sequences(decoder.context(), decoder.state(), from, to);
    from.clear();
    to.clear();
    pass.clear();
    pieces.clear();
    pass_rows = 0;
    reporter.progress("eval", num_done, static_cast<int64_t>(requests.size()), "requests", "");
  }

  // A job whose tokens have gone through, in slot `slot` of the pass.
  void finish(const Job& job, int32_t slot) {
    Group& group = groups[job.group];
    if (job.request) {
      ++num_done;
      if (--group.num_waiting == 0) free_slots.push_back(group.slot);
      return;
    }
    num_done += static_cast<int64_t>(group.requests.size()) - group.num_waiting;
    if (group.num_waiting == 0) return;
    from.push_back(slot);
    to.push_back(group.slot);
    for (const size_t request : group.requests) {
      const std::span<const int32_t> tokens = requests[request].continuation;
      if (tokens.size() > 1) ready.push_back({job.group, request, tokens.first(tokens.size() - 1)});
    }
  }

  void run() {
    for (int64_t slot = scorer.batch_size_; slot-- > 0;)
      free_slots.push_back(narrow<int32_t>(slot));
    for (Group& group : groups) {
      group.num_waiting =
          std::count_if(group.requests.begin(), group.requests.end(),
                        [&](size_t request) { return requests[request].continuation.size() > 1; });
    }
    size_t next = 0;
    while (true) {
      // Continuations first: they give slots back.
      while (!ready.empty() && fits(ready.front())) {
        add(ready.front());
        ready.pop_front();
      }
      while (ready.empty() && next < groups.size()) {
        Group& group = groups[next];
        const Job job{next, {}, requests[group.requests.front()].context};
        const bool needs_slot = group.num_waiting > 0;
        if (!fits(job) || (needs_slot && free_slots.empty())) break;
        if (needs_slot) {
          group.slot = free_slots.back();
          free_slots.pop_back();
        }
        add(job);
        ++next;
      }
      if (pass.empty()) break;
      run_pass();
    }
    read_scores();
  }
};

Scorer::Scorer(const Context& context, const Context& planning_context, const ModelConfig& config,
               const ScorerOptions& options)
    : options_(options), batch_size_(choose_batch_size(options, config, context)) {
  const PassSizes sizes = pass_sizes(options, config, context);
  decoder_ = std::make_unique<decode::TileDecoder>(
      context, planning_context, config,
      decode::TileDecoder::Sizes{.num_slots = batch_size_,
                                 .max_length = options.max_length,
                                 .tile_rows = sizes.tile_rows,
                                 .logit_rows = sizes.logit_rows});
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
  for (const size_t i : order) {
    if (run.groups.empty() ||
        requests[run.groups.back().requests.front()].context != requests[i].context)
      run.groups.emplace_back();
    run.groups.back().requests.push_back(i);
  }
  work_.num_contexts = static_cast<int64_t>(run.groups.size());
  run.run();

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
