// Continuous batching: many requests over one model, each answered as if it were alone.
//
// A request's prompt goes through the model in pieces that end at fixed places, several requests'
// pieces in one pass (decode/tile_decoder.h); then its samples go on token by token beside those of
// other requests, each in a slot of its own. Requests come and go between passes. Where a piece ends,
// the state is kept, so that a later prompt that begins alike starts there.
//
// Tokens and log-probabilities of a request are the same bit for bit whatever else is asked at the
// same time, before or after: a row of a pass does not depend on the other rows, and pieces end where
// the prompt's length says, whether a part of them was kept or not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "decode/sampler.h"
#include "decode/tile_decoder.h"
#include "serve/logprobs.h"
#include "serve/prefix_cache.h"

namespace deltatrain::serve {

struct Request {
  std::vector<int32_t> prompt;  // at least one token, all below the vocabulary size
  int64_t max_new_tokens = 16;  // 0: the prompt is only scored
  int64_t num_samples = 1;
  decode::Sampling sampling;      // sample i draws with seed + i
  std::vector<int32_t> stop_ids;  // end a sample, as its last token
  int64_t num_top =
      -1;  // log-probabilities of tokens with so many alternatives, up to 20; -1: none
  bool scores_prompt = false;  // also those of the prompt's tokens
};

struct GeneratedToken {
  int32_t id = 0;
  bool is_stop = false;    // one of stop_ids
  TokenLogprobs logprobs;  // where asked for
};

enum class FinishReason : uint8_t { kStop, kLength };

// Hears what becomes of a request, on the thread that calls Engine::step(), of a token during the next
// step at the latest. Nothing is called after on_error, nor after the last sample's on_finish.
class Listener {
 public:
  virtual ~Listener() = default;
  // With scores_prompt: of the tokens from the second on. Before anything else.
  virtual void on_prompt(std::vector<TokenLogprobs> logprobs) = 0;
  // False: the sample ends here, with kStop.
  virtual bool on_token(int64_t sample, const GeneratedToken& token) = 0;
  virtual void on_finish(int64_t sample, FinishReason reason) = 0;
  virtual void on_error(const std::string& message) = 0;
  // Asked before every pass. True: the request is dropped, and nothing more is called.
  virtual bool is_cancelled() const { return false; }
};

struct EngineOptions {
  int64_t num_streams = 16;   // samples that go on token by token at a time
  int64_t num_prompts = 16;   // prompts under way at a time
  int64_t max_length = 2050;  // tokens of a prompt and its answer
  int64_t max_queue = 256;    // requests that wait
  int64_t prefix_cache_bytes = 0;
  int64_t piece_tokens = 256;  // longest piece of a prompt, a multiple of short_piece_tokens
  int64_t short_piece_tokens = 64;
};

// Counts since the start, and numbers of now; read from any thread.
struct EngineStats {
  std::atomic<int64_t> requests{0};
  std::atomic<int64_t> prompt_tokens{0};         // that went through the model
  std::atomic<int64_t> reused_prompt_tokens{0};  // that did not have to
  std::atomic<int64_t> generated_tokens{0};
  std::atomic<int64_t> passes{0};
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> waiting{0};
  std::atomic<int64_t> prompts{0};
  std::atomic<int64_t> streams{0};
  std::atomic<int64_t> kept_prefixes{0};
};

class Engine {
 public:
  // Contexts without arena. Weights are zero until set through parameters(). DeviceError when the
  // states do not fit.
  Engine(const Context& context, const Context& planning_context, const ModelConfig& config,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Context& context() const { return decoder_->context(); }
  layers::ParameterStore& parameters() { return decoder_->parameters(); }
  const ModelConfig& config() const { return decoder_->model().config(); }
  const EngineOptions& options() const { return options_; }
  const EngineStats& stats() const { return stats_; }
  int64_t bytes_per_stream() const;

  struct Submission {
    Request request;
    std::shared_ptr<Listener> listener;  // shared with whoever waits for the answer
  };

  // ConfigError for a request that can never run. From any thread.
  void check(const Request& request) const;
  // From any thread. False, with nothing taken, when the queue has no room for all of them.
  // ConfigError as check().
  bool submit(std::vector<Submission> submissions);
  bool submit(Request request, std::shared_ptr<Listener> listener);

  // One pass over prompts and one token for every stream. False when nothing is left to do. Errors
  // of a request go to its listener; what is thrown ends the engine's work.
  bool step();
  // Waits until a request comes, or the time is over. True: there is something to do.
  bool wait(std::chrono::milliseconds time);
  // Tells every request's listener, and forgets them.
  void fail_all(const std::string& message);

  // Where the pieces of a prompt of n tokens end: 64, 128, 256, and every 256 tokens from there, for
  // pieces of 256 and 64; the last at n.
  static std::vector<int64_t> piece_ends(int64_t num_tokens, const EngineOptions& options);

 private:
  struct Job;
  struct Sample;
  struct Undelivered;
  struct WantedRow;

  void take_submitted();
  void drop_cancelled();
  void admit();
  bool waits_for_prefix(const Job& job, size_t num_kept_pieces) const;
  void prefill();
  void keep_row(Job& job, int64_t position, const Tensor& hidden_D);
  void keep_rows(Job& job, int64_t first_row, int64_t first_position, int64_t count);
  int64_t place_for_row();
  void read_kept_rows();
  void finish_prompt(size_t slot);
  void remove_prompt(size_t slot);
  void decode();
  bool deliver(Job& job, int64_t sample, const GeneratedToken& token, bool is_last);
  void deliver_all();
  void remove_streams();
  void count();
  // A pass of few rows is faster on a processor; on a GPU it takes as long as one of many.
  bool has_short_tile() const { return kind_ != DeviceKind::kCuda; }

  EngineOptions options_;
  DeviceKind kind_;
  std::unique_ptr<decode::TileDecoder> decoder_;
  std::unique_ptr<PrefixCache> cache_;
  EngineStats stats_;

  std::mutex mutex_;  // guards submitted_ and num_queued_
  std::condition_variable submitted_something_;
  std::deque<std::shared_ptr<Job>> submitted_;
  int64_t num_queued_ = 0;

  // Of the thread that calls step().
  std::deque<std::shared_ptr<Job>> waiting_;
  std::vector<std::shared_ptr<Job>> prompts_;               // by slot
  std::vector<Sample> streams_;                             // by step slot
  int64_t num_reserved_streams_ = 0;                        // of prompts under way
  size_t next_prompt_ = 0;                                  // where the next pass begins
  std::vector<WantedRow> wanted_;                           // of the kept rows
  std::vector<Undelivered> undelivered_;                    // of the last step
  std::unordered_map<uint64_t, int64_t> pieces_under_way_;  // digest of a prefix -> its num_top
};

}  // namespace deltatrain::serve
