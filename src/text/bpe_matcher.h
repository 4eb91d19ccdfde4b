// The result of byte pair encoding without carrying out the merges one by one: in time linear in the text for
// all practical purposes, however long a word is.
//
// Call a pair of tokens sound if encoding the text of both gives just these two. Then
//
//   t_1 ... t_n is the encoding of its text  if and only if  every t_i encodes to itself and every
//   (t_i, t_{i+1}) is sound.
//
// "Only if": no merge crosses the outer borders of two neighbours, so what happens inside them is what
// would happen to them alone. "If": look at the first merge that crosses a border between t_i and t_{i+1}.
// Up to there both went the way they go alone, and the crossing pair had the lowest rank of the whole text,
// so it would be merged in the text of these two as well. This holds for any list of merges when the pair of
// lowest rank, and of equal ones the leftmost, is merged first.
//
// Symbols are bytes or characters, whatever the vocabulary's merges start from.
//
// So the encoder takes the longest token that fits, checks that it is sound behind the one before, tries
// shorter ones if not, and goes a token back if none is. A position that was given up is never tried again:
// the encoding of the text before it is unique.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge_table.h"
#include "text/pair_table.h"
#include "text/token_trie.h"

namespace deltatrain::text {

// Which pairs of tokens were found sound or not of late. For one thread and one vocabulary.
class PairVerdicts {
 public:
  PairVerdicts() : entries_(size_t{1} << kLogEntries) {}

 private:
  friend class BpeMatcher;
  static constexpr int kLogEntries = 14;  // 128 KiB

  // What stands where the pair's verdict would: 1 for sound, below the pair's key; another pair's, or 0.
  uint64_t& entry(uint64_t key) { return entries_[key * 0x9e3779b97f4a7c15ULL >> (64 - kLogEntries)]; }
  std::vector<uint64_t> entries_;
};

class BpeMatcher {
 public:
  // Appends the symbols that a token's text starts as; false if it has one without a token.
  using SymbolsOf = std::function<bool(const std::string& text, std::vector<int32_t>& symbols)>;

  BpeMatcher() = default;
  // `texts[id]` is the text of a token, empty for ids that have none. `merges` must outlive this.
  BpeMatcher(const std::vector<std::string>& texts, const SymbolsOf& symbols_of, const MergeTable& merges);

  // Encodes the text up to its end or the first symbol without a token; *done tells how far in bytes. Writes
  // the ids, at most one for each byte, and returns how many.
  size_t encode(std::string_view text, PairVerdicts& verdicts, int32_t* ids, size_t* done) const;

  // Whether the token's own text encodes to it.
  bool is_reachable(int32_t id) const { return tokens_[id].reachable; }

 private:
  struct Token {
    int32_t left = -1, right = -1;  // joined last in the token's own encoding; -1 for a symbol
    uint32_t formed = 0;            // rank of that merge plus one; 0 for a symbol
    uint32_t num_symbols = 0;
    bool reachable = false;
    bool regular = true;  // the ranks of its merges never fall, so `formed` is a time
  };

  // The reachable tokens are numbered anew, so that what texts of one kind need lies together in memory: symbols
  // first, then tokens of two of them, and among those of a length tokens of the same kinds of characters. All that
  // encode() touches goes by these numbers.
  // Numbers them; by id, -1 for the others.
  std::vector<int32_t> numbering(const std::vector<std::string>& texts);

  // A token's last symbol, what that was first joined to, and so on up to the token itself: what faces the next
  // token at one time or another. Or the same from its first symbol, towards the token before. Latest first,
  // together in memory.
  struct Link {
    uint32_t place =
        0;  // the token's number; in right spines, unless it is a symbol, its block in pairs_
    uint32_t formed = 0;  // as in Token
  };
  static constexpr size_t kLinks = 4;
  struct alignas(32) Spine {
    Link links[kLinks];
    bool is_whole() const { return links[0].formed != kNotWhole; }
  };
  static constexpr uint32_t kNotWhole = UINT32_MAX;  // in links[0]: longer, or of a token that is not regular
  static constexpr size_t kMaxSymbols = 256;

  // What encode() asks of a token; kept apart from the rest, which it does not need.
  struct Candidate {
    int32_t shorter = -1;  // the longest other token that the token starts with
    uint32_t bytes = 0;
  };
  // Of tokens of one and two symbols there are few, and text without sense falls into them: whether two of them are
  // sound is remembered, two bits a pair.
  static constexpr uint32_t kMaxShort = 4096;

  // Fills in how the token comes about from its symbols.
  void derive(int32_t id, std::vector<int32_t> symbols);
  void build_pairs(const std::vector<int32_t>& number_of);
  void build_spines(const std::vector<int32_t>& number_of);
  Spine spine(int32_t id, int32_t Token::*next, const std::vector<int32_t>& number_of) const;
  // Whether the text of both encodes to just these two; both by number.
  bool is_sound(uint32_t left, uint32_t right, PairVerdicts& verdicts) const;
  bool is_sound_by_spines(uint32_t left, uint32_t right) const;
  // By id, for tokens whose spines do not tell.
  bool is_sound_by_tokens(int32_t left, int32_t right) const;
  bool is_sound_by_merging(int32_t left, int32_t right) const;
  void append_symbols(int32_t id, std::vector<int32_t>& symbols) const;

  const MergeTable* merges_ = nullptr;
  std::vector<Token> tokens_;  // by id
  // By number from here on.
  std::vector<int32_t> ids_;
  std::vector<Candidate> candidates_;
  uint32_t num_symbols_ = 0, num_short_ = 0;
  std::unique_ptr<std::atomic<uint8_t>[]> verdicts_;  // of four pairs each: known, sound; the only thing that changes
  std::vector<Spine> right_spines_, left_spines_;
  PairTable pairs_;
  std::vector<uint32_t> symbol_ranks_;  // of pairs of symbols, kMaxSymbols in a row; empty: there are more symbols
  TokenTrie trie_;
};

}  // namespace deltatrain::text
