#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"

namespace deltatrain::data {

struct BatchLoader::State {
  std::unique_ptr<const SampleSource> source;
  LoaderOptions options;
  StepBatch current;  // what next_step() handed out

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<StepBatch> ready;     // steps next_step, next_step + 1, ...
  std::deque<StepBatch> recycled;  // batches whose memory can be used again
  int64_t next_step = 0;           // handed out next
  int64_t generation = 0;          // changes with every seek
  std::exception_ptr failure;      // of the step after those in `ready`
  bool stopping = false;
  double waited_seconds = 0;
  std::thread reader;

  int64_t T() const { return source->seq_length(); }
  void read_ahead();
  void fill(int64_t step, StepBatch& batch) const;
  void fill_row(int64_t sample, int64_t row, MicroBatch& micro_batch) const;
};

void BatchLoader::State::fill_row(int64_t sample, int64_t row, MicroBatch& micro_batch) const {
  const auto length = static_cast<size_t>(T());
  const size_t begin = static_cast<size_t>(row) * length;
  const size_t first_start = micro_batch.sequence_offsets.size();
  const bool packed = source->packs_documents();
  source->read(sample, std::span(micro_batch.input_ids_R).subspan(begin, length),
               std::span(micro_batch.labels_R).subspan(begin, length),
               packed ? &micro_batch.sequence_offsets : nullptr);
  if (!packed) micro_batch.sequence_offsets.push_back(0);
  for (size_t i = first_start; i < micro_batch.sequence_offsets.size(); ++i) {
    micro_batch.sequence_offsets[i] += static_cast<int32_t>(begin);
  }
}

void BatchLoader::State::fill(int64_t step, StepBatch& batch) const {
  const int64_t b = options.micro_batch_size;
  const int64_t W = options.num_ranks;
  const int64_t num_micro_batches = options.global_batch_size / (b * W);
  const int64_t first = step * options.global_batch_size;
  batch.step = step;
  batch.micro_batches.resize(static_cast<size_t>(num_micro_batches));
  int64_t valid = 0;
  const auto count_valid = [&](const std::vector<int32_t>& labels) {
    valid += std::count_if(labels.begin(), labels.end(),
                           [](int32_t label) { return label != kNoLabel; });
  };
  for (int64_t m = 0; m < num_micro_batches; ++m) {
    MicroBatch& micro_batch = batch.micro_batches[static_cast<size_t>(m)];
    micro_batch.input_ids_R.resize(static_cast<size_t>(b * T()));
    micro_batch.labels_R.resize(static_cast<size_t>(b * T()));
    micro_batch.sequence_offsets.clear();
    micro_batch.samples_B.resize(static_cast<size_t>(b));
    for (int64_t row = 0; row < b; ++row) {
      const int64_t sample = first + (m * W + options.rank) * b + row;
      micro_batch.samples_B[static_cast<size_t>(row)] = sample;
      fill_row(sample, row, micro_batch);
    }
    micro_batch.sequence_offsets.push_back(static_cast<int32_t>(b * T()));
    if (source->labels_per_sample() < 0) count_valid(micro_batch.labels_R);
  }
  if (source->labels_per_sample() >= 0) {
    batch.num_valid_tokens = options.global_batch_size * source->labels_per_sample();
    return;
  }
  // The loss is a mean over all ranks' valid labels, known before the first backward pass: so the
  // rows of the others are read as well.
  std::vector<int32_t> input_ids(static_cast<size_t>(T()));
  std::vector<int32_t> labels(static_cast<size_t>(T()));
  for (int64_t i = 0; i < options.global_batch_size; ++i) {
    if (i / b % W == options.rank) continue;
    source->read(first + i, input_ids, labels, nullptr);
    count_valid(labels);
  }
  batch.num_valid_tokens = valid;
}

void BatchLoader::State::read_ahead() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] {
      return stopping ||
             (failure == nullptr && static_cast<int64_t>(ready.size()) < options.prefetch_steps);
    });
    if (stopping) return;
    const int64_t step = next_step + static_cast<int64_t>(ready.size());
    const int64_t generation_before = generation;
    StepBatch batch;
    if (!recycled.empty()) {
      batch = std::move(recycled.front());
      recycled.pop_front();
    }
    lock.unlock();
    std::exception_ptr thrown;
    try {
      fill(step, batch);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (generation != generation_before) {
      recycled.push_back(std::move(batch));
    } else if (thrown != nullptr) {
      failure = thrown;
    } else {
      ready.push_back(std::move(batch));
    }
    changed.notify_all();
  }
}

BatchLoader::BatchLoader(std::unique_ptr<const SampleSource> source, const LoaderOptions& options)
    : state_(std::make_unique<State>()) {
  const auto require = [](bool holds, const std::string& what, const std::string& expected,
                          int64_t got) {
    if (!holds) throw ConfigError(error_text("", what, expected, std::to_string(got)));
  };
  require(options.micro_batch_size > 0, "micro_batch_size", "at least 1", options.micro_batch_size);
  require(options.num_ranks > 0, "number of ranks", "at least 1", options.num_ranks);
  require(options.rank >= 0 && options.rank < options.num_ranks, "rank",
          "0 to " + std::to_string(options.num_ranks - 1), options.rank);
  require(options.prefetch_steps > 0, "prefetched steps", "at least 1", options.prefetch_steps);
  require(options.global_batch_size > 0 &&
              options.global_batch_size % (options.micro_batch_size * options.num_ranks) == 0,
          "global_batch_size",
          "a multiple of micro_batch_size " + std::to_string(options.micro_batch_size) + " times " +
              std::to_string(options.num_ranks) + " ranks",
          options.global_batch_size);
  state_->source = std::move(source);
  state_->options = options;
  state_->reader = std::thread([state = state_.get()] { state->read_ahead(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->reader.join();
}

const StepBatch& BatchLoader::next_step() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.ready.empty() && state.failure == nullptr) {
    const auto begin = std::chrono::steady_clock::now();
    state.changed.wait(lock, [&] { return !state.ready.empty() || state.failure != nullptr; });
    state.waited_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (state.ready.empty()) std::rethrow_exception(state.failure);
  if (!state.current.micro_batches.empty()) state.recycled.push_back(std::move(state.current));
  state.current = std::move(state.ready.front());
  state.ready.pop_front();
  ++state.next_step;
  state.changed.notify_all();
  return state.current;
}

void BatchLoader::seek(int64_t consumed_samples) {
  State& state = *state_;
  if (consumed_samples < 0 || consumed_samples % state.options.global_batch_size != 0) {
    throw ConfigError(error_text(
        "", "consumed samples",
        "a multiple of global_batch_size " + std::to_string(state.options.global_batch_size),
        std::to_string(consumed_samples)));
  }
  const std::lock_guard lock(state.mutex);
  ++state.generation;
  state.next_step = consumed_samples / state.options.global_batch_size;
  for (StepBatch& batch : state.ready) state.recycled.push_back(std::move(batch));
  state.ready.clear();
  state.failure = nullptr;
  state.changed.notify_all();
}

int64_t BatchLoader::consumed_samples() const {
  const std::lock_guard lock(state_->mutex);
  return state_->next_step * state_->options.global_batch_size;
}

double BatchLoader::waited_seconds() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waited_seconds;
}

const SampleSource& BatchLoader::source() const { return *state_->source; }

}  // namespace deltatrain::data
