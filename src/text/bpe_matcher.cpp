#include "text/bpe_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace deltatrain::text {

namespace {

// Merges by the definition, in quadratic time; used on single tokens and pairs of them. Calls joined(rank)
// for every merge.
template <class Joined>
void merge_by_definition(const MergeTable& merges, std::vector<int32_t>& symbols, const Joined& joined) {
  std::vector<uint32_t> ranks(symbols.size(), MergeTable::kNoRank);
  const auto update = [&](size_t i) {
    ranks[i] = i + 1 < symbols.size() ? merges.rank(symbols[i], symbols[i + 1]) : MergeTable::kNoRank;
  };
  for (size_t i = 0; i < symbols.size(); ++i) update(i);
  while (symbols.size() > 1) {
    const auto best = static_cast<size_t>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
    if (ranks[best] == MergeTable::kNoRank) return;
    joined(ranks[best]);
    symbols[best] = merges.merge(ranks[best]).result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    ranks.erase(ranks.begin() + static_cast<ptrdiff_t>(best) + 1);
    update(best);
    if (best > 0) update(best - 1);
  }
}

// Positions that no encoding passes through. Most words need none; most others are short.
class PositionSet {
 public:
  bool contains(size_t position) const {
    if (position < kInline * 64) return (inline_[position >> 6] >> (position & 63) & 1) != 0;
    const size_t word = position >> 6;
    if (word < first_ || word - first_ >= words_.size()) return false;
    return (words_[word - first_] >> (position & 63) & 1) != 0;
  }
  void insert(size_t position) {
    empty_ = false;
    const uint64_t bit = uint64_t{1} << (position & 63);
    if (position < kInline * 64) {
      inline_[position >> 6] |= bit;
      return;
    }
    const size_t word = position >> 6;
    if (words_.empty()) first_ = word;
    if (word < first_) {
      words_.insert(words_.begin(), first_ - word, 0);
      first_ = word;
    }
    if (word - first_ >= words_.size()) words_.resize(word - first_ + 1);
    words_[word - first_] |= bit;
  }
  bool empty() const { return empty_; }

 private:
  static constexpr size_t kInline = 4;
  bool empty_ = true;
  uint64_t inline_[kInline] = {0, 0, 0, 0};
  size_t first_ = 0;
  std::vector<uint64_t> words_;  // from word first_ on
};

}  // namespace

BpeMatcher::BpeMatcher(const std::vector<std::string>& texts, const SymbolsOf& symbols_of, const MergeTable& merges)
    : merges_(&merges), tokens_(texts.size()), candidates_(texts.size()) {
  std::vector<std::pair<std::string_view, int32_t>> reachable;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    std::vector<int32_t> symbols;
    if (texts[i].empty() || !symbols_of(texts[i], symbols)) continue;
    derive(id, texts[i], std::move(symbols));
    if (is_reachable(id)) reachable.emplace_back(texts[i], id);
  }
  trie_ = TokenTrie(reachable);
  for (const auto& [text, id] : reachable) candidates_[id].shorter = trie_.longest(text.data(), text.size() - 1);
  build_spines();
  number_short_tokens();
}

void BpeMatcher::number_short_tokens() {
  const auto is_symbol = [&](int32_t id) { return tokens_[id].formed == 0; };
  short_numbers_.assign(tokens_.size(), 0);
  for (size_t id = 0; id < tokens_.size() && num_short_ < kMaxShort; ++id) {
    const Token& token = tokens_[id];
    if (!token.reachable || (token.formed != 0 && !(is_symbol(token.left) && is_symbol(token.right)))) continue;
    short_numbers_[id] = static_cast<uint16_t>(++num_short_);
  }
  verdicts_ = std::make_unique<std::atomic<uint8_t>[]>(num_short_ * num_short_ / 4 + 1);
}

void BpeMatcher::build_spines() {
  std::vector<int32_t> symbols;
  std::vector<uint32_t> symbol_of(tokens_.size(), 0);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].reachable || tokens_[id].formed != 0) continue;
    symbol_of[id] = static_cast<uint32_t>(symbols.size());
    symbols.push_back(static_cast<int32_t>(id));
  }
  if (symbols.size() <= kMaxSymbols) {
    symbol_ranks_.assign(kMaxSymbols * kMaxSymbols, MergeTable::kNoRank);
    for (size_t a = 0; a < symbols.size(); ++a) {
      for (size_t b = 0; b < symbols.size(); ++b)
        symbol_ranks_[a * kMaxSymbols + b] = merges_->rank(symbols[a], symbols[b]);
    }
  }
  right_spines_.resize(tokens_.size());
  left_spines_.resize(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].reachable) continue;
    right_spines_[i] = spine(static_cast<int32_t>(i), &Token::right, symbol_of);
    left_spines_[i] = spine(static_cast<int32_t>(i), &Token::left, symbol_of);
  }
}

BpeMatcher::Spine BpeMatcher::spine(int32_t id, int32_t Token::*next, const std::vector<uint32_t>& symbol_of) const {
  Spine result;
  bool whole = tokens_[id].regular;
  for (size_t k = 0; whole; ++k) {
    if (k == kLinks || id >= 1 << 24) {
      whole = false;
      break;
    }
    const Token& token = tokens_[id];
    Link& link = result.links[k];
    link.id = static_cast<uint32_t>(id) & 0xffffff;
    link.formed = token.formed;
    if (token.formed == 0) {
      if (!symbol_ranks_.empty()) link.symbol = symbol_of[id] & 0xff;
      break;
    }
    id = token.*next;
  }
  if (!whole) result.links[0].formed = kNotWhole;
  return result;
}

void BpeMatcher::derive(int32_t id, const std::string& text, std::vector<int32_t> symbols) {
  Token& token = tokens_[id];
  candidates_[id].bytes = narrow<uint32_t>(text.size());
  uint32_t last = 0;
  merge_by_definition(*merges_, symbols, [&](uint32_t rank) {
    if (rank < last) token.regular = false;
    last = rank;
    token.left = merges_->merge(rank).left;
    token.right = merges_->merge(rank).right;
    token.formed = rank + 1;
  });
  token.reachable = symbols.size() == 1 && symbols[0] == id;
}

bool BpeMatcher::is_sound(int32_t left, int32_t right, PairVerdicts& verdicts) const {
  const size_t a = short_numbers_[left];
  const size_t b = short_numbers_[right];
  if (a == 0 || b == 0) {
    const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 24 | static_cast<uint32_t>(right)) + 1;
    uint64_t& entry = verdicts.entry(key);
    if (entry >> 1 == key) return (entry & 1) != 0;
    const bool sound = is_sound_by_spines(left, right);
    entry = key << 1 | (sound ? 1 : 0);
    return sound;
  }
  const size_t pair = (a - 1) * num_short_ + (b - 1);
  std::atomic<uint8_t>& four = verdicts_[pair / 4];
  const size_t shift = pair % 4 * 2;
  const unsigned known = static_cast<unsigned>(four.load(std::memory_order_relaxed)) >> shift;
  if ((known & 2) != 0) return (known & 1) != 0;
  const bool sound = is_sound_by_spines(left, right);
  // Threads that find out the same at once write the same.
  four.fetch_or(static_cast<uint8_t>((sound ? 3 : 2) << shift), std::memory_order_relaxed);
  return sound;
}

// Back in time: whichever of the two symbols at the border was formed last is taken apart, and the pair
// that faced each other until then must not have been due before. A pair is due before an equal one to
// its right, but not before one to its left.
bool BpeMatcher::is_sound_by_spines(int32_t left, int32_t right) const {
  const Spine& before = right_spines_[left];
  const Spine& behind = left_spines_[right];
  if (!before.is_whole() || !behind.is_whole()) return is_sound_by_tokens(left, right);
  const Link* a = before.links;
  const Link* b = behind.links;
  uint32_t limit = MergeTable::kNoRank;
  while ((a->formed | b->formed) != 0 || symbol_ranks_.empty()) {
    if (merges_->rank(static_cast<int32_t>(a->id), static_cast<int32_t>(b->id)) < limit) return false;
    if (a->formed > b->formed) {
      limit = a->formed - 1;
      ++a;
    } else if (b->formed > 0) {
      limit = b->formed;
      ++b;
    } else {
      return true;
    }
  }
  return symbol_ranks_[a->symbol * kMaxSymbols + b->symbol] >= limit;
}

bool BpeMatcher::is_sound_by_tokens(int32_t left, int32_t right) const {
  if (!tokens_[left].regular || !tokens_[right].regular) return is_sound_by_merging(left, right);
  uint32_t limit = MergeTable::kNoRank;
  while (true) {
    if (merges_->rank(left, right) < limit) return false;
    const Token& a = tokens_[left];
    const Token& b = tokens_[right];
    if (a.formed > b.formed) {
      limit = a.formed - 1;
      left = a.right;
    } else if (b.formed > 0) {
      limit = b.formed;
      right = b.left;
    } else {
      return true;
    }
  }
}

void BpeMatcher::append_symbols(int32_t id, std::vector<int32_t>& symbols) const {
  std::vector<int32_t> stack = {id};
  while (!stack.empty()) {
    const int32_t top = stack.back();
    stack.pop_back();
    if (tokens_[top].formed == 0) {
      symbols.push_back(top);
    } else {
      stack.push_back(tokens_[top].right);
      stack.push_back(tokens_[top].left);
    }
  }
}

bool BpeMatcher::is_sound_by_merging(int32_t left, int32_t right) const {
  std::vector<int32_t> symbols;
  append_symbols(left, symbols);
  append_symbols(right, symbols);
  merge_by_definition(*merges_, symbols, [](uint32_t) {});
  return symbols.size() == 2 && symbols[0] == left && symbols[1] == right;
}

size_t BpeMatcher::encode(std::string_view text, PairVerdicts& verdicts, int32_t* ids, size_t* done) const {
  PositionSet given_up;
  size_t count = 0;
  size_t position = 0;
  int32_t candidate = trie_.longest(text.data(), text.size());
  // Nothing starts at a symbol without a token; what is before it is complete, being sound throughout.
  while (position < text.size() && candidate >= 0) {
    const int32_t previous = count > 0 ? ids[count - 1] : -1;
    Candidate step;
    for (; candidate >= 0; candidate = step.shorter) {
      step = candidates_[candidate];
      if (!given_up.empty() && given_up.contains(position + step.bytes)) continue;
      if (previous < 0 || is_sound(previous, candidate, verdicts)) break;
    }
    if (candidate >= 0) {
      ids[count++] = candidate;
      position += step.bytes;
      candidate = trie_.longest(text.data() + position, text.size() - position);
      continue;
    }
    DELTATRAIN_CHECK(previous >= 0, "no token for a symbol");
    given_up.insert(position);
    --count;
    position -= candidates_[previous].bytes;
    candidate = candidates_[previous].shorter;
    // The token before may have no shorter one left either.
    while (candidate < 0) {
      DELTATRAIN_CHECK(count > 0, "no encoding");
      given_up.insert(position);
      --count;
      position -= candidates_[ids[count]].bytes;
      candidate = candidates_[ids[count]].shorter;
    }
  }
  *done = position;
  return count;
}

}  // namespace deltatrain::text
