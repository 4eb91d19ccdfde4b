#include "text/word_encoder.h"

namespace deltatrain::text {

void WordEncoder::encode(const Pending& pending) {
  const std::string_view word(pending.word, pending.bytes);
  if (pending.bytes > kBuffer) {
    flush();
    const size_t before = ids_.size();
    ids_.resize(before + word.size());
    ids_.resize(before + bpe_.encode_bytes(word, verdicts_, ids_.data() + before));
    return;
  }
  if (num_buffered_ + pending.bytes + WordCache::kMaxLongIds > kBuffer) flush();
  int32_t* const out = buffer_.data() + num_buffered_;
  const bool is_short = pending.bytes <= WordCache::kMaxShortBytes;
  WordCache::LongEntry* entry = nullptr;
  WordCache::LongKey key;
  if (pending.bytes >= WordCache::kMinLongBytes && pending.bytes <= WordCache::kMaxBytes &&
      cache_.uses_long()) {
    key = is_short ? WordCache::long_key(pending.key)
                   : WordCache::long_key(pending.word, pending.bytes);
    entry = &cache_.long_entry(key);
    const bool found = entry->key == key;
    cache_.note_long(found);
    if (found) {
      std::memcpy(out, entry->ids, sizeof entry->ids);
      num_buffered_ += entry->count;
      return;
    }
  }
  const size_t count = bpe_.encode_bytes(word, verdicts_, out);
  num_buffered_ += count;
  if (is_short && count <= WordCache::kMaxShortIds) {
    WordCache::insert(*pending.set, pending.key, out, count);
  } else if (entry != nullptr && count <= WordCache::kMaxLongIds) {
    WordCache::insert(*entry, key, out, count);
  }
}

}  // namespace deltatrain::text
