#include "text/bpe_matcher.h"

#include <algorithm>
#include <bit>
#include <compare>

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

// One bit for each kind of byte that the text has.
uint32_t kinds_of_characters(std::string_view text) {
  uint32_t kinds = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c >= 'a' && c <= 'z') {
      kinds |= 1;
    } else if (c >= 'A' && c <= 'Z') {
      kinds |= 2;
    } else if (c >= '0' && c <= '9') {
      kinds |= 4;
    } else if (byte >= 0x80) {
      kinds |= 8;
    } else {
      kinds |= c == ' ' ? 16 : 32;
    }
  }
  return kinds;
}

}  // namespace

BpeMatcher::BpeMatcher(const std::vector<std::string>& texts, const SymbolsOf& symbols_of, const MergeTable& merges)
    : merges_(&merges), tokens_(texts.size()) {
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> symbols;
    if (texts[i].empty() || !symbols_of(texts[i], symbols)) continue;
    derive(static_cast<int32_t>(i), std::move(symbols));
  }
  const std::vector<int32_t> number_of = numbering(texts);
  std::vector<std::pair<std::string_view, int32_t>> numbered(ids_.size());
  for (size_t n = 0; n < ids_.size(); ++n) numbered[n] = {texts[ids_[n]], static_cast<int32_t>(n)};
  trie_ = TokenTrie(numbered);
  candidates_.resize(ids_.size());
  for (const auto& [text, number] : numbered) {
    candidates_[number] = {trie_.longest(text.data(), text.size() - 1), narrow<uint32_t>(text.size())};
  }
  build_pairs(number_of);
  build_spines(number_of);
  verdicts_ = std::make_unique<std::atomic<uint8_t>[]>(size_t{num_short_} * num_short_ / 4 + 1);
}

std::vector<int32_t> BpeMatcher::numbering(const std::vector<std::string>& texts) {
  struct Place {
    uint32_t num_symbols, kinds;
    int32_t id;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> order;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].reachable) continue;
    const uint32_t num_symbols = std::min<uint32_t>(tokens_[id].num_symbols, 5);
    order.push_back({num_symbols, kinds_of_characters(texts[id]), static_cast<int32_t>(id)});
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> number_of(tokens_.size(), -1);
  for (const Place& place : order) {
    number_of[place.id] = static_cast<int32_t>(ids_.size());
    ids_.push_back(place.id);
    if (place.num_symbols == 1) ++num_symbols_;
    if (place.num_symbols <= 2 && num_short_ < kMaxShort) ++num_short_;
  }
  return number_of;
}

void BpeMatcher::build_pairs(const std::vector<int32_t>& number_of) {
  std::vector<PairTable::Pair> pairs;  // no other pair of tokens ever meets
  merges_->any_of([&](int32_t left, int32_t right) {
    if (!tokens_[left].reachable || !tokens_[right].reachable) return false;
    pairs.push_back({static_cast<uint32_t>(number_of[left]),
                     static_cast<uint32_t>(number_of[right]), merges_->rank(left, right)});
    return false;
  });
  std::sort(pairs.begin(), pairs.end(), [](const PairTable::Pair& a, const PairTable::Pair& b) {
    return a.left != b.left ? a.left < b.left : a.right < b.right;
  });
  const auto is_same = [](const PairTable::Pair& a, const PairTable::Pair& b) {
    return a.left == b.left && a.right == b.right;
  };
  pairs.erase(std::unique(pairs.begin(), pairs.end(), is_same), pairs.end());
  pairs_ = PairTable(pairs, ids_.size());
}

void BpeMatcher::build_spines(const std::vector<int32_t>& number_of) {
  if (num_symbols_ <= kMaxSymbols) {
    symbol_ranks_.assign(kMaxSymbols * kMaxSymbols, MergeTable::kNoRank);
    for (uint32_t a = 0; a < num_symbols_; ++a) {
      for (uint32_t b = 0; b < num_symbols_; ++b)
        symbol_ranks_[a * kMaxSymbols + b] = pairs_.rank(pairs_.block(a), b);
    }
  }
  right_spines_.resize(ids_.size());
  left_spines_.resize(ids_.size());
  for (size_t n = 0; n < ids_.size(); ++n) {
    right_spines_[n] = spine(ids_[n], &Token::right, number_of);
    left_spines_[n] = spine(ids_[n], &Token::left, number_of);
    for (Link& link : right_spines_[n].links) {
      if (link.formed != 0 && right_spines_[n].is_whole()) link.place = pairs_.block(link.place);
    }
  }
}

BpeMatcher::Spine BpeMatcher::spine(int32_t id, int32_t Token::*next, const std::vector<int32_t>& number_of) const {
  Spine result;
  bool whole = tokens_[id].regular;
  for (size_t k = 0; whole; ++k) {
    if (k == kLinks) {
      whole = false;
      break;
    }
    const Token& token = tokens_[id];
    DELTATRAIN_CHECK(token.reachable, "part " + std::to_string(id) + " of a token");
    result.links[k] = {static_cast<uint32_t>(number_of[id]), token.formed};
    if (token.formed == 0) break;
    id = token.*next;
  }
  if (!whole) result.links[0].formed = kNotWhole;
  return result;
}

void BpeMatcher::derive(int32_t id, std::vector<int32_t> symbols) {
  Token& token = tokens_[id];
  token.num_symbols = narrow<uint32_t>(symbols.size());
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

bool BpeMatcher::is_sound(uint32_t left, uint32_t right, PairVerdicts& verdicts) const {
  if (left >= num_short_ || right >= num_short_) {
    const uint64_t key = (static_cast<uint64_t>(left) << 24 | right) + 1;
    uint64_t& entry = verdicts.entry(key);
    if (entry >> 1 == key) return (entry & 1) != 0;
    const bool sound = is_sound_by_spines(left, right);
    entry = key << 1 | (sound ? 1 : 0);
    return sound;
  }
  const size_t pair = size_t{left} * num_short_ + right;
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
bool BpeMatcher::is_sound_by_spines(uint32_t left, uint32_t right) const {
  const Spine& before = right_spines_[left];
  const Spine& behind = left_spines_[right];
  if (!before.is_whole() || !behind.is_whole()) return is_sound_by_tokens(ids_[left], ids_[right]);
  const Link* a = before.links;
  const Link* b = behind.links;
  uint32_t limit = MergeTable::kNoRank;
  while ((a->formed | b->formed) != 0 || symbol_ranks_.empty()) {
    const uint32_t block = a->formed != 0 ? a->place : pairs_.block(a->place);
    if (pairs_.rank(block, b->place) < limit) return false;
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
  return symbol_ranks_[a->place * kMaxSymbols + b->place] >= limit;
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
    const int32_t previous = count > 0 ? ids[count - 1] : -1;  // by number, as all until the end
    Candidate step;
    for (; candidate >= 0; candidate = step.shorter) {
      step = candidates_[candidate];
      if (!given_up.empty() && given_up.contains(position + step.bytes)) continue;
      if (previous < 0 || is_sound(static_cast<uint32_t>(previous), static_cast<uint32_t>(candidate), verdicts)) break;
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
  for (size_t i = 0; i < count; ++i) ids[i] = ids_[ids[i]];
  *done = position;
  return count;
}

}  // namespace deltatrain::text
