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

}  // namespace

BpeMatcher::BpeMatcher(const std::vector<std::string>& tokens, const int32_t* byte_ids, const MergeTable& merges)
    : merges_(&merges), byte_ids_(byte_ids, byte_ids + 256), tokens_(tokens.size()), shorter_(tokens.size(), -1) {
  std::vector<std::pair<std::string_view, int32_t>> reachable;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty() && derive(static_cast<int32_t>(id), tokens[id])) {
      reachable.emplace_back(tokens[id], static_cast<int32_t>(id));
    }
  }
  trie_ = TokenTrie(reachable);
  for (const auto& [bytes, id] : reachable) shorter_[id] = trie_.longest(bytes.data(), bytes.size() - 1);
}

bool BpeMatcher::derive(int32_t id, const std::string& bytes) {
  Token& token = tokens_[id];
  DELTATRAIN_CHECK(bytes.size() < size_t{1} << 30, "a token of " + std::to_string(bytes.size()) + " bytes");
  token.bytes = static_cast<uint32_t>(bytes.size()) & 0x3fffffff;
  std::vector<int32_t> symbols(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(bytes[i])];
  uint32_t last = 0;
  merge_by_definition(*merges_, symbols, [&](const MergeTable::Entry& entry) {
    if (entry.rank < last) token.regular = 0;
    last = entry.rank;
    token.left = entry.left;
    token.right = entry.right;
    token.formed = entry.rank + 1;
  });
  token.reachable = symbols.size() == 1 && symbols[0] == id ? 1 : 0;
  return token.reachable != 0;
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

void BpeMatcher::append_bytes(int32_t id, std::vector<int32_t>& symbols) const {
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
  append_bytes(left, symbols);
  append_bytes(right, symbols);
  merge_by_definition(*merges_, symbols, [](const MergeTable::Entry&) {});
  return symbols.size() == 2 && symbols[0] == left && symbols[1] == right;
}

size_t BpeMatcher::encode(std::string_view word, int32_t* ids) const {
  std::vector<bool> given_up;  // positions, from the first step back on
  size_t count = 0;
  size_t position = 0;
  int32_t candidate = trie_.longest(word.data(), word.size());
  while (position < word.size()) {
    const int32_t previous = count > 0 ? ids[count - 1] : -1;
    for (; candidate >= 0; candidate = shorter_[candidate]) {
      const size_t end = position + tokens_[candidate].bytes;
      if (!given_up.empty() && given_up[end]) continue;
      if (previous < 0 || is_sound(previous, candidate)) break;
    }
    if (candidate >= 0) {
      ids[count++] = candidate;
      position += tokens_[candidate].bytes;
      candidate = trie_.longest(word.data() + position, word.size() - position);
      continue;
    }
    DELTATRAIN_CHECK(previous >= 0, "no token for a byte");
    if (given_up.empty()) given_up.resize(word.size() + 1);
    given_up[position] = true;
    --count;
    position -= tokens_[previous].bytes;
    candidate = shorter_[previous];
  }
  return count;
}

}  // namespace deltatrain::text
