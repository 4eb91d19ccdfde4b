// Byte pair encoding: words to token ids.
//
// A word starts as one symbol for each character. As long as some pair of neighbours is in the list of
// merges, the pair of lowest rank (the leftmost of them) becomes one symbol. Time is n log n in the length
// of the word, without recursion; common short words come from a cache of fixed size.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltatrain::text {

inline constexpr int32_t kNoToken = -1;

// Tokens by their bytes and by their id.
class TokenTable {
 public:
  // False if the token or the id is there already.
  bool insert(std::string_view token, int32_t id);
  int32_t find(std::string_view token) const;  // kNoToken
  bool contains(int32_t id) const;
  std::string_view operator[](int32_t id) const;  // empty without a token
  int64_t size() const { return size_; }
  int32_t end_id() const { return static_cast<int32_t>(spans_.size()); }

 private:
  struct Span {
    uint64_t begin = 0;
    uint32_t bytes = 0;
    bool present = false;
  };
  void grow();

  std::string bytes_;
  std::vector<Span> spans_;     // by id
  std::vector<int32_t> slots_;  // open addressing, kNoToken where free
  int64_t size_ = 0;
};

// The ids of recently seen words of at most 15 bytes and 3 tokens. Two places for each word, the older of
// which is given up, so memory and time are bounded whatever the text.
class WordCache {
 public:
  struct Key {
    uint64_t low, high;
    bool operator==(const Key&) const = default;
  };
  static constexpr int64_t kMaxBytes = 15;
  static constexpr int kMaxIds = 3;

  struct Entry {
    Key key{0, 0};
    int32_t count = 0;
    int32_t ids[kMaxIds] = {0, 0, 0};
  };

  WordCache() : sets_(size_t{1} << kLogSets) {}

  // `word` has 1 to 15 bytes; `readable` is how many may be read from word on.
  static Key key(const char* word, int64_t bytes, int64_t readable) {
    uint64_t parts[2] = {0, 0};
    if (readable >= 16) {
      std::memcpy(parts, word, 16);
    } else {
      std::memcpy(parts, word, static_cast<size_t>(bytes));
    }
    Key result;
    const auto bits = static_cast<uint64_t>(bytes) * 8;
    if (bytes <= 8) {
      result.low = bytes == 8 ? parts[0] : parts[0] & ((uint64_t{1} << bits) - 1);
      result.high = 0;
    } else {
      result.low = parts[0];
      result.high = parts[1] & ((uint64_t{1} << (bits - 64)) - 1);
    }
    result.high |= static_cast<uint64_t>(bytes) << 56;
    return result;
  }

  const Entry* find(Key key) {
    Set& set = sets_[index(key)];
    if (set.entries[0].key == key) return &set.entries[0];
    if (set.entries[1].key == key) return &set.entries[1];
    return nullptr;
  }

  void insert(Key key, const int32_t* ids, int64_t count) {
    Set& set = sets_[index(key)];
    set.entries[1] = set.entries[0];
    set.entries[0].key = key;
    set.entries[0].count = static_cast<int32_t>(count);
    for (int64_t i = 0; i < count; ++i) set.entries[0].ids[i] = ids[i];
  }

 private:
  static constexpr int kLogSets = 15;  // 2 MiB
  struct alignas(64) Set {
    Entry entries[2];
  };
  static size_t index(Key key) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(key.low ^ 0x9e3779b97f4a7c15ULL) * (key.high ^ 0xd6e8feb86659fd93ULL);
    const uint64_t mixed = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    return static_cast<size_t>((mixed * 0x9e3779b97f4a7c15ULL) >> (64 - kLogSets));
  }
  std::vector<Set> sets_;
};

// What one thread needs while it encodes; reused from text to text.
struct BpeScratch {
  WordCache cache;
  std::vector<int32_t> symbols;
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> next;
  std::vector<uint32_t> previous;
  std::vector<uint64_t> queue;

  void trim();  // gives back what an unusually long word has taken
};

struct BpeSettings {
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool byte_fallback = false;  // a character without a token becomes its bytes' tokens <0x00> .. <0xFF>
  bool fuse_unknown = false;
  int32_t unknown_id = kNoToken;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
};

class Bpe {
 public:
  struct Merge {
    int32_t left, right, result;
  };

  // `tokens` as they stand in the file, in printable form if byte-level; `merges` in order of rank.
  Bpe(TokenTable tokens, const std::vector<Merge>& merges, BpeSettings settings);

  // Whether encode_bytes() may be used: every byte's stand-in is a token and nothing depends on
  // characters.
  bool has_byte_symbols() const { return has_byte_symbols_; }

  // Appends the ids of a word given as raw bytes. `readable` bytes from word.data() on may be read.
  void encode_bytes(std::string_view word, int64_t readable, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  // Appends the ids of a word in the vocabulary's own characters; well-formed UTF-8.
  void encode_characters(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  const TokenTable& tokens() const { return tokens_; }
  const BpeSettings& settings() const { return settings_; }
  int64_t num_merges() const { return num_merges_; }

 private:
  struct Pair {
    int32_t left, right;
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  const Pair* find(int32_t left, int32_t right) const;
  void encode_uncached(std::string_view word, BpeScratch& scratch) const;
  void merge(BpeScratch& scratch) const;        // scratch.symbols, in place
  void merge_short(BpeScratch& scratch) const;  // quadratic in the length
  void merge_long(BpeScratch& scratch) const;

  TokenTable tokens_;
  TokenTable raw_tokens_;  // by raw bytes, if has_byte_symbols_
  BpeSettings settings_;
  bool has_byte_symbols_ = false;
  std::array<int32_t, 256> byte_symbols_{};   // printable stand-ins
  std::array<int32_t, 256> fallback_ids_{};   // <0x00> .. <0xFF>
  std::vector<Pair> pairs_;                   // open addressing
  uint64_t pair_shift_ = 0;
  int64_t num_merges_ = 0;
};

}  // namespace deltatrain::text
