#include "text/bpe_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace deltatrain::text {

namespace {

// Merges by the definition, in quadratic time; used on single tokens and pairs of them. Calls joined(entry)
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
    const MergeTable::Entry* entry = merges.find(symbols[best], symbols[best + 1]);
    joined(*entry);
    symbols[best] = entry->result;
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
    : merges_(&merges), tokens_(texts.size()), shorter_(texts.size(), -1) {
  std::vector<std::pair<std::string_view, int32_t>> reachable;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    std::vector<int32_t> symbols;
    if (texts[i].empty() || !symbols_of(texts[i], symbols)) continue;
    derive(id, texts[i], std::move(symbols));
    if (is_reachable(id)) reachable.emplace_back(texts[i], id);
  }
  trie_ = TokenTrie(reachable);
  for (const auto& [text, id] : reachable) shorter_[id] = trie_.longest(text.data(), text.size() - 1);
}

void BpeMatcher::derive(int32_t id, const std::string& text, std::vector<int32_t> symbols) {
  Token& token = tokens_[id];
  DELTATRAIN_CHECK(text.size() < size_t{1} << 30, "a token of " + std::to_string(text.size()) + " bytes");
  token.bytes = static_cast<uint32_t>(text.size()) & 0x3fffffff;
  uint32_t last = 0;
  merge_by_definition(*merges_, symbols, [&](const MergeTable::Entry& entry) {
    if (entry.rank < last) token.regular = 0;
    last = entry.rank;
    token.left = entry.left;
    token.right = entry.right;
    token.formed = entry.rank + 1;
  });
  token.reachable = symbols.size() == 1 && symbols[0] == id ? 1 : 0;
}

bool BpeMatcher::is_sound(int32_t left, int32_t right) const {
  if (tokens_[left].regular == 0 || tokens_[right].regular == 0) return is_sound_by_merging(left, right);
  // Back in time: whichever of the two symbols at the border was formed last is taken apart, and the pair
  // that faced each other until then must not have been due before. A pair is due before an equal one to
  // its right, but not before one to its left.
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
  merge_by_definition(*merges_, symbols, [](const MergeTable::Entry&) {});
  return symbols.size() == 2 && symbols[0] == left && symbols[1] == right;
}

size_t BpeMatcher::encode(std::string_view text, int32_t* ids, size_t* done) const {
  PositionSet given_up;
  size_t count = 0;
  size_t position = 0;
  int32_t candidate = trie_.longest(text.data(), text.size());
  // Nothing starts at a symbol without a token; what is before it is complete, being sound throughout.
  while (position < text.size() && candidate >= 0) {
    const int32_t previous = count > 0 ? ids[count - 1] : -1;
    for (; candidate >= 0; candidate = shorter_[candidate]) {
      if (!given_up.empty() && given_up.contains(position + tokens_[candidate].bytes)) continue;
      if (previous < 0 || is_sound(previous, candidate)) break;
    }
    if (candidate >= 0) {
      ids[count++] = candidate;
      position += tokens_[candidate].bytes;
      candidate = trie_.longest(text.data() + position, text.size() - position);
      continue;
    }
    DELTATRAIN_CHECK(previous >= 0, "no token for a symbol");
    given_up.insert(position);
    --count;
    position -= tokens_[previous].bytes;
    candidate = shorter_[previous];
    // The token before may have no shorter one left either.
    while (candidate < 0) {
      DELTATRAIN_CHECK(count > 0, "no encoding");
      given_up.insert(position);
      --count;
      position -= tokens_[ids[count]].bytes;
      candidate = shorter_[ids[count]];
    }
  }
  *done = position;
  return count;
}

}  // namespace deltatrain::text
