#include "serve/engine.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::serve {

namespace {

constexpr int64_t kLogitRows = 64;

int64_t state_bytes(const Context& context, const ModelConfig& config, int64_t max_length) {
  const Model model(config);
  int64_t bytes = 0;
  for (const auto& shape : model.state_shapes(1, max_length)) {
    for (const Shape* part : {&shape.recurrent, &shape.qk_history, &shape.v_history}) {
      if (part->rank() > 0) bytes += part->num_elements() * dtype_bytes(context.statistics_dtype());
    }
    for (const Shape* part : {&shape.k_cache, &shape.v_cache}) {
      if (part->rank() > 0) bytes += part->num_elements() * dtype_bytes(context.activation_dtype);
    }
  }
  return bytes;
}

using Wish = decode::TileDecoder::Wish;
using Choice = decode::TileDecoder::Choice;

// For token `position` of a sample.
Wish wish_of(const Request& request, int64_t sample, int64_t position) {
  decode::Sampling sampling = request.sampling;
  sampling.seed += static_cast<uint64_t>(sample);
  return {.sampling = sampling,
          .uniform = decode::uniform_of(sampling, position),
          .num_top = std::max<int64_t>(0, request.num_top)};
}

GeneratedToken token_of(const Request& request, const Choice& choice) {
  if (choice.id < 0)
    throw NumericError(error_text("model", "logits", "finite numbers", "NaN or infinity"));
  return {.id = choice.id,
          .is_stop = std::ranges::find(request.stop_ids, choice.id) != request.stop_ids.end(),
          .logprobs = request.num_top < 0 ? TokenLogprobs{} : token_logprobs(choice)};
}

}  // namespace

struct Engine::Job {
  Request request;
  std::shared_ptr<Listener> listener;  // shared with whoever waits for the answer
  std::vector<int64_t> piece_ends;
  std::vector<uint64_t> digests;  // of the prompt up to each piece's end
  size_t next_piece = 0;
  std::vector<TokenLogprobs> prompt_logprobs;  // of tokens 1, ...; filled with scores_prompt
  std::vector<GeneratedToken> first_tokens;    // of each sample, from rows of the same hidden state
  std::vector<char> is_stopped;                // by sample: the listener was told of its end
  int64_t num_reserved = 0;
  std::string error;
  bool is_over = false;  // failed or dropped: its streams go without a word

  int64_t length() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t num_done() const { return next_piece == 0 ? 0 : piece_ends[next_piece - 1]; }
  std::span<const int32_t> prefix(int64_t count) const {
    return std::span(request.prompt).first(static_cast<size_t>(count));
  }
  // Of logs that the request needs of prefixes kept by others.
  int64_t num_top_of_prompt() const { return request.scores_prompt ? request.num_top : -1; }
  void fail(const std::string& message) {
    if (error.empty()) error = message;
    is_over = true;
  }
};

struct Engine::Sample {
  std::shared_ptr<Job> job;  // shared by the samples of a request
  int64_t index = 0;
  int32_t last_id = 0;
  int64_t num_tokens = 0;
  bool is_finished = false;
};

// A token that the listener has not heard of.
struct Engine::Undelivered {
  std::shared_ptr<Job> job;  // shared by the samples of a request
  int64_t sample;
  GeneratedToken token;
  bool is_last;
};

struct Engine::WantedRow {
  Job* job;
  int64_t position;    // the row's token; it tells of the next
  int64_t sample = 0;  // where it is the prompt's last: whose first token it gives
};

std::vector<int64_t> Engine::piece_ends(int64_t num_tokens, const EngineOptions& options) {
  std::vector<int64_t> ends;
  int64_t end = options.short_piece_tokens;
  while (end < num_tokens) {
    ends.push_back(end);
    end += std::min(end, options.piece_tokens);
  }
  ends.push_back(num_tokens);
  return ends;
}

Engine::Engine(const Context& context, const Context& planning_context, const ModelConfig& config,
               const EngineOptions& options)
    : options_(options), kind_(context.device->kind()) {
  const int64_t ratio = divide_exactly(options.piece_tokens, options.short_piece_tokens);
  DELTATRAIN_CHECK(std::has_single_bit(static_cast<uint64_t>(ratio)), "pieces that double");
  DELTATRAIN_CHECK(options.num_streams > 0 && options.num_prompts > 0 && options.max_length > 1,
                   "room for one request");
  decoder_ = std::make_unique<decode::TileDecoder>(
      context, planning_context, config,
      decode::TileDecoder::Sizes{
          .num_slots = options.num_prompts + 1,
          .max_length = options.max_length,
          .tile_rows = options.piece_tokens,
          .logit_rows = kLogitRows,
          .short_tile_rows = has_short_tile() ? options.short_piece_tokens : 0,
          .num_step_slots = options.num_streams});
  const int64_t bytes = state_bytes(context, config, decoder_->sizes().max_length);
  cache_ = std::make_unique<PrefixCache>(*decoder_,
                                         options.prefix_cache_bytes / std::max<int64_t>(1, bytes));
}

Engine::~Engine() = default;

int64_t Engine::bytes_per_stream() const {
  return state_bytes(context(), config(), decoder_->sizes().max_length);
}

void Engine::check(const Request& request) const {
  const auto refuse = [](const char* what, const std::string& expected, int64_t got) {
    throw ConfigError(error_text("", what, expected, std::to_string(got)));
  };
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t N = config().vocab_size;
  DELTATRAIN_CHECK(request.num_top >= 0 || !request.scores_prompt, "scores are asked for");
  if (length == 0) refuse("prompt", "at least one token", 0);
  if (request.max_new_tokens < 0) refuse("max_tokens", "a number >= 0", request.max_new_tokens);
  if (length > options_.max_length || request.max_new_tokens > options_.max_length - length)
    refuse("prompt and max_tokens",
           "at most " + std::to_string(options_.max_length) + " tokens together",
           length + request.max_new_tokens);
  if (request.num_samples < 1 || request.num_samples > options_.num_streams)
    refuse("n", "a number from 1 to " + std::to_string(options_.num_streams), request.num_samples);
  if (request.num_top > decode::TileDecoder::kMaxTop)
    refuse("logprobs", "a number up to " + std::to_string(decode::TileDecoder::kMaxTop),
           request.num_top);
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= N) refuse("prompt", "token ids from 0 to " + std::to_string(N - 1), id);
  }
}

bool Engine::submit(Request request, std::shared_ptr<Listener> listener) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(listener)});
  return submit(std::move(one));
}

bool Engine::submit(std::vector<Submission> submissions) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (Submission& submission : submissions) {
    check(submission.request);
    auto job = std::make_shared<Job>();
    job->request = std::move(submission.request);
    job->listener = std::move(submission.listener);
    job->piece_ends = piece_ends(job->length(), options_);
    job->is_stopped.resize(static_cast<size_t>(job->request.num_samples));
    for (const int64_t end : job->piece_ends)
      job->digests.push_back(prefix_digest(job->prefix(end)));
    jobs.push_back(std::move(job));
  }
  const auto count = static_cast<int64_t>(jobs.size());
  {
    const std::lock_guard lock(mutex_);
    if (count > options_.max_queue - num_queued_) return false;
    num_queued_ += count;
    submitted_.insert(submitted_.end(), jobs.begin(), jobs.end());
  }
  stats_.requests += count;
  submitted_something_.notify_one();
  return true;
}

bool Engine::wait(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return submitted_something_.wait_for(lock, time, [this] { return num_queued_ > 0; });
}

bool Engine::step() {
  take_submitted();
  drop_cancelled();
  admit();
  if (!prompts_.empty()) prefill();
  if (!streams_.empty()) decode();
  count();  // before clients hear of the last tokens, who may ask for the counts
  if (streams_.empty()) deliver_all();
  return !waiting_.empty() || !prompts_.empty() || !streams_.empty();
}

void Engine::count() {
  stats_.waiting = static_cast<int64_t>(waiting_.size());
  stats_.prompts = static_cast<int64_t>(prompts_.size());
  stats_.streams = static_cast<int64_t>(streams_.size());
  stats_.kept_prefixes = cache_->size();
}

void Engine::take_submitted() {
  const std::lock_guard lock(mutex_);
  waiting_.insert(waiting_.end(), submitted_.begin(), submitted_.end());
  submitted_.clear();
}

void Engine::fail_all(const std::string& message) {
  deliver_all();
  take_submitted();
  for (const auto& job : waiting_) job->listener->on_error(message);
  for (const auto& job : prompts_) job->listener->on_error(message);
  for (const Sample& sample : streams_) {
    if (!sample.job->is_over && !sample.is_finished) sample.job->listener->on_error(message);
    sample.job->is_over = true;
  }
  {
    const std::lock_guard lock(mutex_);
    num_queued_ -= static_cast<int64_t>(waiting_.size());
  }
  waiting_.clear();
  prompts_.clear();
  streams_.clear();
  wanted_.clear();
  pieces_under_way_.clear();
  num_reserved_streams_ = 0;
  count();
}

void Engine::drop_cancelled() {
  const auto dropped =
      std::erase_if(waiting_, [](const auto& job) { return job->listener->is_cancelled(); });
  if (dropped > 0) {
    const std::lock_guard lock(mutex_);
    num_queued_ -= static_cast<int64_t>(dropped);
  }
  for (size_t slot = prompts_.size(); slot-- > 0;) {
    if (prompts_[slot]->listener->is_cancelled()) remove_prompt(slot);
  }
  for (const Sample& sample : streams_) {
    if (sample.job->listener->is_cancelled()) sample.job->is_over = true;
  }
  remove_streams();
}

// Whether a prompt under way is about to make a state that this one could start from.
bool Engine::waits_for_prefix(const Job& job, size_t num_kept_pieces) const {
  for (size_t i = num_kept_pieces; i + 1 < job.digests.size(); ++i) {
    const auto found = pieces_under_way_.find(job.digests[i]);
    if (found != pieces_under_way_.end() && found->second >= job.num_top_of_prompt()) return true;
  }
  return false;
}

void Engine::admit() {
  int64_t num_admitted = 0;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (static_cast<int64_t>(prompts_.size()) == options_.num_prompts) break;
    const std::shared_ptr<Job> job = *it;
    const Request& request = job->request;
    // The first token of a sample needs no stream.
    const int64_t needed = request.max_new_tokens > 1 ? request.num_samples : 0;
    const int64_t in_use = static_cast<int64_t>(streams_.size()) + num_reserved_streams_;
    if (needed > options_.num_streams - in_use) break;  // nobody overtakes
    size_t num_kept = job->piece_ends.size();
    const PrefixCache::Entry* kept = nullptr;
    for (; num_kept > 0; --num_kept) {
      kept = cache_->find(job->prefix(job->piece_ends[num_kept - 1]), job->num_top_of_prompt());
      if (kept != nullptr) break;
    }
    if (cache_->capacity() > 0 && waits_for_prefix(*job, num_kept)) {
      ++it;
      continue;
    }
    it = waiting_.erase(it);
    ++num_admitted;
    const size_t slot = prompts_.size();
    prompts_.push_back(job);
    job->num_reserved = needed;
    num_reserved_streams_ += needed;
    if (kept == nullptr) {
      decoder_->state().reset_sequence(context(), static_cast<int64_t>(slot));
    } else {
      decoder_->state().copy_sequence(context(), cache_->states(), kept->slot,
                                      static_cast<int64_t>(slot));
      job->next_piece = num_kept;
      stats_.reused_prompt_tokens += job->num_done();
      if (request.scores_prompt) {
        job->prompt_logprobs = kept->logprobs;
        for (TokenLogprobs& logprobs : job->prompt_logprobs) {
          const auto most = static_cast<size_t>(std::max<int64_t>(0, request.num_top));
          if (logprobs.top.size() > most) logprobs.top.resize(most);
        }
      }
      keep_row(*job, job->num_done() - 1, cache_->hidden_row(*kept));
    }
    for (size_t i = job->next_piece; i < job->digests.size(); ++i)
      pieces_under_way_[job->digests[i]] = job->num_top_of_prompt();
  }
  if (num_admitted == 0) return;
  const std::lock_guard lock(mutex_);
  num_queued_ -= num_admitted;
}

// A pass over pieces of neighbouring slots, as many as fit, and what follows from it.
void Engine::prefill() {
  using Tile = decode::TileDecoder::Tile;
  const auto piece_of = [&](size_t slot) {
    const Job& job = *prompts_[slot];
    const int64_t begin = job.num_done();
    return std::span(job.request.prompt)
        .subspan(static_cast<size_t>(begin),
                 static_cast<size_t>(job.piece_ends[job.next_piece] - begin));
  };
  const auto is_fed = [&](size_t slot) {
    return prompts_[slot]->next_piece == prompts_[slot]->piece_ends.size();
  };
  const auto tile_of = [&](std::span<const int32_t> piece) {
    return has_short_tile() && static_cast<int64_t>(piece.size()) <= options_.short_piece_tokens
               ? Tile::kShort
               : Tile::kWhole;
  };
  if (next_prompt_ >= prompts_.size()) next_prompt_ = 0;
  const size_t first = next_prompt_;
  std::vector<std::span<const int32_t>> pieces;
  Tile tile = Tile::kWhole;
  int64_t num_rows = 0;
  for (size_t slot = first; slot < prompts_.size() && !is_fed(slot); ++slot) {
    const auto piece = piece_of(slot);
    if (pieces.empty()) tile = tile_of(piece);
    const int64_t room =
        (tile == Tile::kShort ? options_.short_piece_tokens : options_.piece_tokens) - num_rows;
    if (tile_of(piece) != tile || static_cast<int64_t>(piece.size()) > room) break;
    pieces.push_back(piece);
    num_rows += static_cast<int64_t>(piece.size());
  }
  next_prompt_ = first + std::max<size_t>(1, pieces.size());
  if (!pieces.empty()) {
    // What fills the pass up overwrites the slot after the last.
    const auto after = static_cast<int64_t>(first + pieces.size());
    const int64_t spare = options_.num_prompts + 1;
    const bool is_in_use = after < static_cast<int64_t>(prompts_.size());
    decode::State& state = decoder_->state();
    if (is_in_use) state.copy_sequence(context(), state, after, spare);
    decoder_->feed(static_cast<int64_t>(first), pieces, tile);
    if (is_in_use) state.copy_sequence(context(), state, spare, after);
    ++stats_.passes;
    stats_.prompt_tokens += num_rows;
  }
  int64_t row = 0;
  struct Kept {
    size_t slot;
    int64_t last_row;
  };
  std::vector<Kept> kept;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Job& job = *prompts_[first + i];
    const auto size = static_cast<int64_t>(pieces[i].size());
    keep_rows(job, row, job.num_done(), size);
    row += size;
    kept.push_back({first + i, row - 1});
  }
  read_kept_rows();
  for (const Kept& piece : kept) {
    Job& job = *prompts_[piece.slot];
    const uint64_t digest = job.digests[job.next_piece];
    ++job.next_piece;
    pieces_under_way_.erase(digest);
    if (job.is_over) continue;
    // A prompt's own end is kept too: another sample of it may be asked for.
    std::vector<TokenLogprobs> logprobs;
    if (job.request.scores_prompt && cache_->capacity() > 0)
      logprobs.assign(job.prompt_logprobs.begin(),
                      job.prompt_logprobs.begin() + (job.num_done() - 1));
    cache_->insert(job.prefix(job.num_done()), decoder_->state(), static_cast<int64_t>(piece.slot),
                   decoder_->hidden_row(piece.last_row), job.num_top_of_prompt(),
                   std::move(logprobs));
  }
  for (size_t slot = prompts_.size(); slot-- > 0;) {
    if (prompts_[slot]->is_over || is_fed(slot)) finish_prompt(slot);
  }
}

// Whether the row of the token at `position` tells something that the request asks for.
void Engine::keep_rows(Job& job, int64_t first_row, int64_t first_position, int64_t count) {
  const Request& request = job.request;
  const int64_t last = job.length() - 1;
  int64_t begin = first_position, end = first_position + count;
  if (!request.scores_prompt) begin = std::max(begin, last);
  if (request.max_new_tokens == 0) end = std::min(end, last);
  while (begin < end) {
    const bool is_last = begin == last;
    const auto to = place_for_row();
    const int64_t now = std::min(is_last ? 1 : std::min(end, last) - begin, kLogitRows - to);
    decoder_->keep_rows(first_row + begin - first_position, now, to);
    for (int64_t i = 0; i < now; ++i) wanted_.push_back({&job, begin + i});
    for (int64_t sample = 1; is_last && sample < request.num_samples; ++sample) {
      decoder_->keep_rows(first_row + begin - first_position, 1, place_for_row());
      wanted_.push_back({&job, begin, sample});
    }
    begin += now;
  }
}

void Engine::keep_row(Job& job, int64_t position, const Tensor& hidden_D) {
  const Request& request = job.request;
  const bool is_last = position == job.length() - 1;
  if (is_last ? request.max_new_tokens == 0 : !request.scores_prompt) return;
  for (int64_t sample = 0; sample < (is_last ? request.num_samples : 1); ++sample) {
    decoder_->keep_row(hidden_D, place_for_row());
    wanted_.push_back({&job, position, sample});
  }
}

// Of the next wanted row.
int64_t Engine::place_for_row() {
  if (static_cast<int64_t>(wanted_.size()) == kLogitRows) read_kept_rows();
  return static_cast<int64_t>(wanted_.size());
}

void Engine::read_kept_rows() {
  if (wanted_.empty()) return;
  std::vector<Wish> wishes;
  for (const WantedRow& row : wanted_) {
    const Request& request = row.job->request;
    const int64_t next = row.position + 1;
    Wish wish = wish_of(request, row.sample, 0);
    if (next < row.job->length()) wish.given = request.prompt[static_cast<size_t>(next)];
    wishes.push_back(wish);
  }
  const std::vector<Choice> choices = decoder_->choices(wishes);
  for (size_t row = 0; row < wanted_.size(); ++row) {
    Job& job = *wanted_[row].job;
    if (job.is_over) continue;
    try {
      GeneratedToken token = token_of(job.request, choices[row]);
      if (wanted_[row].position + 1 < job.length()) {
        job.prompt_logprobs.push_back(std::move(token.logprobs));
      } else {
        job.first_tokens.push_back(std::move(token));
      }
    } catch (const NumericError& error) {
      job.fail(error.what());
    }
  }
  wanted_.clear();
}

// Tells the listener and gives the samples that go on their streams.
void Engine::finish_prompt(size_t slot) {
  const std::shared_ptr<Job> job = prompts_[slot];
  if (!job->is_over && !job->listener->is_cancelled()) {
    const Request& request = job->request;
    if (request.scores_prompt) job->listener->on_prompt(std::move(job->prompt_logprobs));
    for (int64_t i = 0; i < request.num_samples; ++i) {
      Sample sample{.job = job, .index = i};
      if (request.max_new_tokens == 0) {
        job->listener->on_finish(i, FinishReason::kLength);
        continue;
      }
      const GeneratedToken& first = job->first_tokens[static_cast<size_t>(i)];
      sample.last_id = first.id;
      sample.num_tokens = 1;
      if (!deliver(*job, i, first, request.max_new_tokens == 1)) continue;
      decoder_->step_state().copy_sequence(context(), decoder_->state(), static_cast<int64_t>(slot),
                                           static_cast<int64_t>(streams_.size()));
      streams_.push_back(std::move(sample));
    }
  } else if (!job->error.empty()) {
    job->listener->on_error(job->error);
  }
  remove_prompt(slot);
}

void Engine::remove_prompt(size_t slot) {
  Job& job = *prompts_[slot];
  for (size_t i = job.next_piece; i < job.digests.size(); ++i)
    pieces_under_way_.erase(job.digests[i]);
  DELTATRAIN_CHECK(wanted_.empty(), "rows are read before their prompt goes");
  num_reserved_streams_ -= job.num_reserved;
  const size_t last = prompts_.size() - 1;
  if (slot != last) {
    decoder_->state().copy_sequence(context(), decoder_->state(), static_cast<int64_t>(last),
                                    static_cast<int64_t>(slot));
    prompts_[slot] = std::move(prompts_[last]);
  }
  prompts_.pop_back();
}

// Tells the listener of a token. False: it was the sample's last.
bool Engine::deliver(Job& job, int64_t sample, const GeneratedToken& token, bool is_last) {
  ++stats_.generated_tokens;
  const bool goes_on = job.listener->on_token(sample, token) && !token.is_stop;
  if (goes_on && !is_last) return true;
  job.is_stopped[static_cast<size_t>(sample)] = 1;
  job.listener->on_finish(sample, goes_on ? FinishReason::kLength : FinishReason::kStop);
  return false;
}

void Engine::deliver_all() {
  for (const Undelivered& token : undelivered_) {
    Job& job = *token.job;
    if (job.is_over || job.is_stopped[static_cast<size_t>(token.sample)] != 0) continue;
    deliver(job, token.sample, token.token, token.is_last);
  }
  undelivered_.clear();
}

// One token for every stream.
void Engine::decode() {
  const auto rows = static_cast<size_t>(decoder_->step_rows());
  for (size_t first = 0; first < streams_.size(); first += rows) {
    const size_t count = std::min(rows, streams_.size() - first);
    std::vector<int32_t> ids;
    std::vector<Wish> wishes;
    bool is_greedy = true;  // and nothing else is asked for
    for (size_t i = 0; i < count; ++i) {
      const Sample& sample = streams_[first + i];
      const Request& request = sample.job->request;
      ids.push_back(sample.last_id);
      wishes.push_back(wish_of(request, sample.index, sample.num_tokens));
      is_greedy = is_greedy && request.num_top < 0 && request.sampling.temperature <= 0;
    }
    const auto result = decoder_->step(static_cast<int64_t>(first), ids);
    ++stats_.steps;
    deliver_all();  // of the step before: a GPU is at work meanwhile
    std::vector<Choice> choices(count);
    if (is_greedy) {
      context().device->copy_to_host(ids.data(), result.chosen_S.raw(), count * sizeof(int32_t));
      for (size_t i = 0; i < count; ++i) choices[i].id = ids[i];
    } else {
      choices = decoder_->step_choices(wishes);
    }
    for (size_t i = 0; i < count; ++i) {
      Sample& sample = streams_[first + i];
      Job& job = *sample.job;
      if (job.is_over) continue;
      // The listener had enough of it while this token was made.
      sample.is_finished = job.is_stopped[static_cast<size_t>(sample.index)] != 0;
      if (sample.is_finished) continue;
      try {
        GeneratedToken token = token_of(job.request, choices[i]);
        sample.last_id = token.id;
        ++sample.num_tokens;
        sample.is_finished = token.is_stop || sample.num_tokens == job.request.max_new_tokens;
        undelivered_.push_back({sample.job, sample.index, std::move(token), sample.is_finished});
      } catch (const NumericError& error) {
        job.fail(error.what());
      }
    }
  }
  remove_streams();
}

// The last stream moves into the slot of one that ended.
void Engine::remove_streams() {
  for (size_t slot = streams_.size(); slot-- > 0;) {
    Sample& sample = streams_[slot];
    if (!sample.is_finished && !sample.job->is_over) continue;
    if (sample.job->is_over && !sample.job->error.empty()) {
      sample.job->listener->on_error(sample.job->error);
      sample.job->error.clear();
    }
    const size_t last = streams_.size() - 1;
    if (slot != last) {
      decoder_->step_state().copy_sequence(context(), decoder_->step_state(),
                                           static_cast<int64_t>(last), static_cast<int64_t>(slot));
      streams_[slot] = std::move(streams_[last]);
    }
    streams_.pop_back();
  }
}

}  // namespace deltatrain::serve
