#include "prepare/pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"

namespace deltatrain::prepare {

namespace {

// A block's documents as they go into the part.
struct Encoded {
  std::vector<int32_t> ids;
  std::vector<int32_t> lengths;
  PartCounts counts;
  int64_t text_bytes = 0;  // of the block, counted as under way
  int64_t file_bytes = 0;
};

class Encoding final : public DocumentSink {
 public:
  Encoding(const TextEncoder& encoder, OnEmptyText on_empty, Encoded& out)
      : encoder_(encoder), on_empty_(on_empty), out_(out) {}

  void document(std::string_view text) override {
    std::vector<int32_t>& ids = out_.ids;
    const size_t before = ids.size();
    // Growing, a large vector stands in memory twice; what is reserved and not used does not count.
    if (text.size() > kLargeText) ids.reserve(before + text.size() + 16);
    encoder_.encode(text, ids);
    if (ids.size() == before && on_empty_ == OnEmptyText::kSkip) return skipped("empty");
    // A document without tokens gets no end, as in Megatron's preprocessing.
    if (encoder_.eod_id >= 0 && ids.size() > before) ids.push_back(encoder_.eod_id);
    const size_t count = ids.size() - before;
    if (count > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      throw FormatError(
          error_text("a document", "", "at most 2147483647 tokens", std::to_string(count)));
    }
    out_.lengths.push_back(static_cast<int32_t>(count));
    ++out_.counts.documents;
    out_.counts.tokens += static_cast<int64_t>(count);
    out_.counts.text_bytes += static_cast<int64_t>(text.size());
  }

  void skipped(const char* reason) override {
    ++out_.counts.skipped[reason];
    out_.lengths.push_back(-1);
  }

  void replaced(const char* what, int64_t count) override { out_.counts.replaced[what] += count; }

 private:
  static constexpr size_t kLargeText = size_t{1} << 24;
  const TextEncoder& encoder_;
  const OnEmptyText on_empty_;
  Encoded& out_;
};

// Appends a block to its part. Ids of another type than the output's are packed a piece at a time.
void append(const Encoded& encoded, formats::TokenType type, PartWriter& writer) {
  const std::span<const int32_t> ids = encoded.ids;
  if (type == formats::TokenType::kI32)
    return writer.append(std::as_bytes(ids), encoded.lengths, encoded.counts);
  constexpr size_t kPiece = size_t{1} << 18;
  std::vector<std::byte> packed;
  for (size_t begin = 0; begin < ids.size(); begin += kPiece) {
    packed.clear();
    formats::pack_tokens(type, ids.subspan(begin, std::min(kPiece, ids.size() - begin)), packed);
    writer.append(packed, {}, {});
  }
  writer.append({}, encoded.lengths, encoded.counts);
}

// A shard under way: one thread at a time reads it, any encode its blocks, one at a time writes
// them in order.
struct ShardRun {
  int64_t shard = 0;
  std::string stem;
  size_t next_range = 0;
  std::unique_ptr<BlockReader> reader;
  std::unique_ptr<PartWriter> writer;
  bool reading = false;
  bool read_to_end = false;
  bool writing = false;
  int64_t blocks_read = 0;
  int64_t blocks_written = 0;
  std::map<int64_t, Encoded> encoded;  // waiting for the blocks before them
};

struct Task {
  ShardRun* run = nullptr;
  int64_t index = 0;
  Block block;
};

// Memory of blocks that are done with, for later ones: to get it anew from the system takes longer than to fill it. What is
// unusually large is not kept.
template <class Buffer>
class Spares {
 public:
  explicit Spares(int64_t max_bytes)
      : max_size_(static_cast<size_t>(max_bytes) / sizeof(typename Buffer::value_type)) {}

  Buffer take() {
    const std::lock_guard lock(mutex_);
    if (spares_.empty()) return {};
    Buffer buffer = std::move(spares_.back());
    spares_.pop_back();
    return buffer;
  }
  void give_back(Buffer& buffer) {
    Buffer given;
    given.swap(buffer);
    if (given.capacity() > max_size_) return;
    given.clear();
    const std::lock_guard lock(mutex_);
    spares_.push_back(std::move(given));
  }

 private:
  const size_t max_size_;
  std::mutex mutex_;
  std::vector<Buffer> spares_;
};

class Pipeline {
 public:
  Pipeline(const Plan& plan, const std::vector<int64_t>& shards, const TextEncoder& encoder,
           const PipelineOptions& options, const std::function<std::string(int64_t)>& stem_of,
           int64_t done_bytes, int64_t total_bytes, Reporter& reporter)
      : plan_(plan),
        waiting_(shards.begin(), shards.end()),
        encoder_(encoder),
        options_(options),
        stem_of_(stem_of),
        done_bytes_(done_bytes),
        total_bytes_(total_bytes),
        reporter_(reporter),
        spare_texts_(4 * options.block_bytes),
        spare_ids_(4 * options.block_bytes) {}

  void run() {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < options_.num_workers; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    RecordParser parser(options_.records);
    std::unique_lock lock(mutex_);
    while (true) {
      if (failure_ != nullptr) break;
      if (!tasks_.empty()) {
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        guarded(lock, task.run->shard, [&] { encode(lock, parser, task); });
      } else if (ShardRun* run = shard_to_read(); run != nullptr) {
        guarded(lock, run->shard, [&] { read(lock, *run); });
      } else if (waiting_.empty() && runs_.empty()) {
        break;
      } else {
        changed_.wait(lock);
      }
    }
    changed_.notify_all();
  }

  // Runs a step; what it throws ends the work. The error of the earliest shard is the one that
  // counts.
  template <class Step>
  void guarded(std::unique_lock<std::mutex>& lock, int64_t shard, Step step) {
    try {
      step();
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (failure_ == nullptr || shard < failed_shard_) {
        failure_ = std::current_exception();
        failed_shard_ = shard;
      }
    }
    changed_.notify_all();
  }

  // The earliest shard that nobody reads, a new one if all are being read; null if there is enough
  // under way.
  ShardRun* shard_to_read() {
    const auto num_under_way = 2 * options_.num_workers + 2;
    if (bytes_under_way_ >= options_.max_bytes_under_way || blocks_under_way_ >= num_under_way)
      return nullptr;
    for (ShardRun& run : runs_) {
      if (!run.reading && !run.read_to_end) return &run;
    }
    if (waiting_.empty() || static_cast<int64_t>(runs_.size()) >= options_.num_workers)
      return nullptr;
    ShardRun& run = runs_.emplace_back();
    run.shard = waiting_.front();
    waiting_.pop_front();
    run.stem = stem_of_(run.shard);
    return &run;
  }

  void read(std::unique_lock<std::mutex>& lock, ShardRun& run) {
    run.reading = true;
    ++blocks_under_way_;
    Task task{&run, run.blocks_read, {}};
    lock.unlock();
    task.block.bytes = spare_texts_.take();
    const std::vector<FileRange>& ranges = plan_.shards[static_cast<size_t>(run.shard)].ranges;
    bool found = false;
    while (!found) {
      if (run.reader == nullptr) {
        if (run.next_range == ranges.size()) break;
        run.reader =
            open_block_reader(ranges[run.next_range++], options_.records, options_.block_bytes);
      }
      found = run.reader->next(task.block);
      if (!found) run.reader = nullptr;
    }
    lock.lock();
    run.reading = false;
    if (!found) {
      run.read_to_end = true;
      --blocks_under_way_;
      finish_if_done(lock, run);
      return;
    }
    ++run.blocks_read;
    bytes_under_way_ += static_cast<int64_t>(task.block.bytes.size());
    tasks_.push_back(std::move(task));
  }

  void encode(std::unique_lock<std::mutex>& lock, RecordParser& parser, Task& task) {
    lock.unlock();
    Encoded encoded;
    encoded.ids = spare_ids_.take();
    encoded.text_bytes = static_cast<int64_t>(task.block.bytes.size());
    encoded.file_bytes = task.block.file_bytes;
    Encoding sink(encoder_, options_.records.on_empty_text, encoded);
    parser.parse(task.block, sink);
    spare_texts_.give_back(task.block.bytes);
    lock.lock();
    ShardRun& run = *task.run;
    run.encoded.emplace(task.index, std::move(encoded));
    if (!run.writing) write(lock, run);
  }

  // Writes what is next in order for as long as there is such a block.
  void write(std::unique_lock<std::mutex>& lock, ShardRun& run) {
    run.writing = true;
    for (auto next = run.encoded.begin();
         next != run.encoded.end() && next->first == run.blocks_written;
         next = run.encoded.begin()) {
      Encoded encoded = std::move(next->second);
      run.encoded.erase(next);
      lock.unlock();
      if (run.writer == nullptr) run.writer = std::make_unique<PartWriter>(run.stem);
      append(encoded, options_.token_type, *run.writer);
      spare_ids_.give_back(encoded.ids);
      lock.lock();
      ++run.blocks_written;
      --blocks_under_way_;
      bytes_under_way_ -= encoded.text_bytes;
      done_bytes_ += encoded.file_bytes;
      documents_ += encoded.counts.documents;
      tokens_ += encoded.counts.tokens;
      reporter_.progress(
          "prepare", done_bytes_, total_bytes_, "B",
          std::to_string(documents_) + " documents, " + std::to_string(tokens_) + " tokens");
      changed_.notify_all();
    }
    run.writing = false;
    finish_if_done(lock, run);
  }

  void finish_if_done(std::unique_lock<std::mutex>& lock, ShardRun& run) {
    if (!run.read_to_end || run.writing || run.blocks_written != run.blocks_read) return;
    run.writing = true;  // nobody else finishes it
    lock.unlock();
    if (run.writer == nullptr) run.writer = std::make_unique<PartWriter>(run.stem);
    run.writer->commit();
    lock.lock();
    runs_.remove_if([&](const ShardRun& other) { return &other == &run; });
    changed_.notify_all();
  }

  const Plan& plan_;
  std::deque<int64_t> waiting_;
  const TextEncoder& encoder_;
  const PipelineOptions& options_;
  const std::function<std::string(int64_t)>& stem_of_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<ShardRun> runs_;
  std::deque<Task> tasks_;
  int64_t blocks_under_way_ = 0;
  int64_t bytes_under_way_ = 0;
  int64_t done_bytes_;
  const int64_t total_bytes_;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  std::exception_ptr failure_;
  int64_t failed_shard_ = 0;
  Reporter& reporter_;
  Spares<std::string> spare_texts_;
  Spares<std::vector<int32_t>> spare_ids_;
};

}  // namespace

void make_parts(const Plan& plan, const std::vector<int64_t>& shards, const TextEncoder& encoder,
                const PipelineOptions& options, const std::function<std::string(int64_t)>& stem_of,
                int64_t done_bytes, int64_t total_bytes, Reporter& reporter) {
  Pipeline(plan, shards, encoder, options, stem_of, done_bytes, total_bytes, reporter).run();
}

}  // namespace deltatrain::prepare
