// Words of raw bytes to ids, through a cache, in batches that hide the cache's distance.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/word_cache.h"

namespace deltatrain::text {

// Collects words and appends their ids to `ids`, in order; the last ones on finish(). The words' bytes must
// stay where they are until then. For one thread.
class WordEncoder {
 public:
  // `text_end`: no byte from there on is read.
  WordEncoder(const Bpe& bpe, WordCache& cache, PairVerdicts& verdicts, const char* text_end,
              std::vector<int32_t>& ids)
      : bpe_(bpe), cache_(cache), verdicts_(verdicts), text_end_(text_end), ids_(ids) {}

  void add(const char* word, size_t bytes) {
    Pending& pending = pending_[num_pending_++];
    pending.word = word;
    pending.bytes = bytes;
    if (bytes <= WordCache::kMaxShortBytes) {
      pending.key = WordCache::short_key(word, bytes, static_cast<size_t>(text_end_ - word));
      pending.set = &cache_.short_set(pending.key);
      __builtin_prefetch(pending.set);
    }
    if (num_pending_ == kBatch) encode_pending();
  }

  void finish() {
    encode_pending();
    flush();
  }

 private:
  static constexpr size_t kBatch = 16;
  static constexpr size_t kBuffer = 2048;

  struct Pending {
    const char* word;
    size_t bytes;
    WordCache::ShortKey key;
    WordCache::ShortSet* set;
  };

  void encode_pending() {
    for (size_t i = 0; i < num_pending_; ++i) {
      const Pending& pending = pending_[i];
      if (pending.bytes <= WordCache::kMaxShortBytes) {
        if (const WordCache::ShortEntry* entry = WordCache::find(*pending.set, pending.key)) {
          if (num_buffered_ + WordCache::kMaxShortIds > kBuffer) flush();
          std::memcpy(buffer_.data() + num_buffered_, entry->ids, sizeof entry->ids);
          num_buffered_ += entry->count();
          continue;
        }
      }
      encode(pending);
    }
    num_pending_ = 0;
  }
  void encode(const Pending& pending);  // a word that is not in the table for short ones
  void flush() {
    ids_.insert(ids_.end(), buffer_.data(), buffer_.data() + num_buffered_);
    num_buffered_ = 0;
  }

  const Bpe& bpe_;
  WordCache& cache_;
  PairVerdicts& verdicts_;
  const char* text_end_;
  std::vector<int32_t>& ids_;
  size_t num_pending_ = 0, num_buffered_ = 0;
  std::array<Pending, kBatch> pending_;
  std::array<int32_t, kBuffer> buffer_;
};

}  // namespace deltatrain::text
