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
  if (num_buffered_ + pending.bytes + 7 > kBuffer) flush();
  int32_t* const out = buffer_.data() + num_buffered_;
  if (pending.bytes > WordCache::kMaxBytes) {
    num_buffered_ += bpe_.encode_bytes(word, verdicts_, out);
    return;
  }
  const WordCache::LongKey key = WordCache::long_key(pending.word, pending.bytes);
  WordCache::LongEntry& entry = cache_.long_entry(key);
  if (entry.key == key) {
    std::memcpy(out, entry.ids, sizeof entry.ids);
    num_buffered_ += entry.count;
    return;
  }
  const size_t count = bpe_.encode_bytes(word, verdicts_, out);
  num_buffered_ += count;
  if (pending.bytes <= WordCache::kMaxShortBytes && count <= 3) {
    WordCache::insert(*pending.set, pending.key, out, count);
  } else if (count <= 7) {
    WordCache::insert(entry, key, out, count);
  }
}

}  // namespace deltatrain::text
