// The ids of recently seen words, so that common ones are encoded once.
//
// Two tables of fixed size, so memory and time are bounded whatever the text: one for words of at most 15
// bytes and 4 ids, two to a cache line, and one for words of at most 31 bytes and 7 ids, one to a line.
// Nothing is ever computed from what is in them but the ids of the same word. For one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace deltatrain::text {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 31;

  WordCache() : short_(size_t{1} << kLogShort), long_(size_t{1} << kLogLong) {}

  // A word's bytes with its length in the last; all zero for none.
  struct ShortKey {
    uint64_t parts[2];
  };
  struct LongKey {
    uint64_t parts[4];
    bool operator==(const LongKey&) const = default;
  };
  static constexpr size_t kMaxShortBytes = 15, kMaxShortIds = 4, kMaxLongIds = 7;
  // Of fewer bytes hardly a word has too many ids for a short entry.
  static constexpr size_t kMinLongBytes = 8;

  // `readable` >= bytes is how many bytes may be read from `word` on.
  static ShortKey short_key(const char* word, size_t bytes, size_t readable) {
    ShortKey key{{0, 0}};
    if (readable < 16) {
      std::memcpy(key.parts, word, bytes);
    } else {
      std::memcpy(key.parts, word, 16);
      const uint64_t bits = bytes * 8;
      if (bytes < 8) {
        key.parts[0] &= (uint64_t{1} << bits) - 1;
        key.parts[1] = 0;
      } else {
        key.parts[1] &= bytes == 8 ? 0 : (uint64_t{1} << (bits - 64)) - 1;
      }
    }
    key.parts[1] |= static_cast<uint64_t>(bytes) << 56;
    return key;
  }
  static LongKey long_key(const ShortKey& key) {
    const uint64_t length = key.parts[1] >> 56 << 56;
    return {{key.parts[0], key.parts[1] ^ length, 0, length}};
  }
  static LongKey long_key(const char* word, size_t bytes) {
    LongKey key{{0, 0, 0, 0}};
    std::memcpy(key.parts, word, bytes);
    key.parts[3] |= static_cast<uint64_t>(bytes) << 56;
    return key;
  }

  // The length takes four bits, and the number of ids the four above.
  struct ShortEntry {
    ShortKey key{{0, 0}};
    int32_t ids[4] = {0, 0, 0, 0};
    bool is_of(const ShortKey& word) const {
      return ((key.parts[0] ^ word.parts[0]) | (key.parts[1] ^ word.parts[1]) << 4) == 0;
    }
    size_t count() const { return key.parts[1] >> 60; }
  };
  struct alignas(64) ShortSet {
    ShortEntry entries[2];  // the one used less recently is given up
  };
  struct alignas(64) LongEntry {
    LongKey key{{0, 0, 0, 0}};
    int32_t ids[7] = {0, 0, 0, 0, 0, 0, 0};
    uint32_t count = 0;
  };

  ShortSet& short_set(const ShortKey& key) {
    return short_[mix(key.parts[0], key.parts[1]) >> (64 - kLogShort)];
  }
  LongEntry& long_entry(const LongKey& key) {
    return long_[mix(mix(key.parts[0], key.parts[1]) ^ key.parts[2], key.parts[3]) >> (64 - kLogLong)];
  }

  static const ShortEntry* find(const ShortSet& set, const ShortKey& key) {
    if (set.entries[0].is_of(key)) return &set.entries[0];
    if (set.entries[1].is_of(key)) return &set.entries[1];
    return nullptr;
  }
  static void insert(ShortSet& set, const ShortKey& key, const int32_t* ids, size_t count) {
    set.entries[1] = set.entries[0];
    set.entries[0].key = key;
    set.entries[0].key.parts[1] |= static_cast<uint64_t>(count) << 60;
    std::memcpy(set.entries[0].ids, ids, count * sizeof(int32_t));
  }
  static void insert(LongEntry& entry, const LongKey& key, const int32_t* ids, size_t count) {
    entry.key = key;
    entry.count = static_cast<uint32_t>(count);
    std::memcpy(entry.ids, ids, count * sizeof(int32_t));
  }

  // Whether to look a word up in the table of long ones, and to put it there. Where fewer than one word in nine is found, only
  // one in sixteen is looked up: what the table's memory takes from the near caches is worth more than what it gives.
  bool uses_long() { return trust_ > 0 || ++num_doubtful_ % 16 == 0; }
  void note_long(bool found) {
    trust_ = found ? std::min(trust_ + 8, kMaxTrust) : std::max(trust_ - 1, 0);
  }

 private:
  static constexpr int kMaxTrust = 256;
  static constexpr int kLogShort = 16;  // 4 MiB
  static constexpr int kLogLong = 14;   // 1 MiB

  static uint64_t mix(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a ^ 0x9e3779b97f4a7c15ULL) * (b ^ 0xd6e8feb86659fd93ULL);
    return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) * 0x9e3779b97f4a7c15ULL;
  }

  std::vector<ShortSet> short_;
  std::vector<LongEntry> long_;
  int trust_ = kMaxTrust;
  uint32_t num_doubtful_ = 0;
};

}  // namespace deltatrain::text
