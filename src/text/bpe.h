// Byte pair encoding: words to token ids.
//
// A word starts as one symbol for each character. As long as some pair of neighbours is in the list of
// merges, the pair of lowest rank (the leftmost of them) becomes one symbol. Time is n log n in the length
// of the word, or linear by BpeMatcher where the symbols are bytes; there is no recursion.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe_matcher.h"
#include "text/merge_table.h"

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

// What one thread needs while it merges; reused from word to word.
struct BpeScratch {
  std::vector<int32_t> symbols;
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> next;
  std::vector<uint32_t> previous;
  std::vector<uint64_t> queue;
  PairVerdicts verdicts;

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
  // `tokens` as they stand in the file, in printable form if byte-level; `merges` in order of rank.
  Bpe(TokenTable tokens, const std::vector<Merge>& merges, BpeSettings settings);
  Bpe(const Bpe&) = delete;  // the matcher points into it
  Bpe& operator=(const Bpe&) = delete;

  // Whether encode_bytes() may be used: every byte's
  // stand-in is a token and nothing depends on characters.
  bool has_byte_symbols() const { return has_byte_symbols_; }

  // Writes the ids of a word given as raw bytes, at most one for each byte, and returns how many.
  size_t encode_bytes(std::string_view word, PairVerdicts& verdicts, int32_t* ids) const {
    if (word.size() <= longest_unreachable_bytes_) {
      if (const int32_t id = unreachable_.find(word); id != kNoToken) {
        ids[0] = id;
        return 1;
      }
    }
    size_t done = 0;
    return matcher_.encode(word, verdicts, ids, &done);
  }

  // Appends the ids of a word in the vocabulary's own characters; well-formed UTF-8. Not for the speed of a
  // vocabulary with byte symbols.
  void encode_characters(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  const TokenTable& tokens() const { return tokens_; }
  const BpeSettings& settings() const { return settings_; }
  int64_t num_merges() const { return merges_.size(); }

 private:
  void build_byte_matcher();
  void build_character_matcher();
  bool append_character_symbols(std::string_view text, std::vector<int32_t>& symbols) const;
  bool append_fallback(std::string_view character, std::vector<int32_t>& symbols) const;
  void match_characters(std::string_view word, BpeScratch& scratch) const;
  void merge_characters(std::string_view word, BpeScratch& scratch) const;
  void merge(BpeScratch& scratch) const;        // scratch.symbols, in place
  void merge_short(BpeScratch& scratch) const;  // quadratic in the length
  void merge_long(BpeScratch& scratch) const;

  TokenTable tokens_;
  TokenTable unreachable_;  // by raw bytes: what is a token as a whole word only, by ignore_merges
  size_t longest_unreachable_bytes_ = 0;
  BpeSettings settings_;
  bool has_byte_symbols_ = false;
  std::array<int32_t, 256> byte_symbols_{};  // printable stand-ins
  std::array<int32_t, 256> fallback_ids_{};  // <0x00> .. <0xFF>
  MergeTable merges_;
  bool matches_characters_ = false;  // the matcher is one of characters
  BpeMatcher matcher_;
};

}  // namespace deltatrain::text
