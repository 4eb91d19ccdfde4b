#include "text/bpe.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/hash.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace deltatrain::text {

bool TokenTable::insert(std::string_view token, int32_t id) {
  DELTATRAIN_CHECK(id >= 0, "token id " + std::to_string(id));
  if (find(token) != kNoToken || contains(id)) return false;
  if (static_cast<size_t>(size_ + 1) * 2 > slots_.size()) grow();
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[id] = {bytes_.size(), narrow<uint32_t>(token.size()), true};
  bytes_.append(token);
  const size_t mask = slots_.size() - 1;
  size_t slot = xxh3_64(token.data(), token.size()) & mask;
  while (slots_[slot] != kNoToken) slot = (slot + 1) & mask;
  slots_[slot] = id;
  ++size_;
  return true;
}

int32_t TokenTable::find(std::string_view token) const {
  if (slots_.empty()) return kNoToken;
  const size_t mask = slots_.size() - 1;
  size_t slot = xxh3_64(token.data(), token.size()) & mask;
  while (slots_[slot] != kNoToken) {
    if ((*this)[slots_[slot]] == token) return slots_[slot];
    slot = (slot + 1) & mask;
  }
  return kNoToken;
}

bool TokenTable::contains(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[id].present;
}

std::string_view TokenTable::operator[](int32_t id) const {
  if (!contains(id)) return {};
  return std::string_view(bytes_).substr(spans_[id].begin, spans_[id].bytes);
}

void TokenTable::grow() {
  slots_.assign(std::max<size_t>(16, slots_.size() * 2), kNoToken);
  const size_t mask = slots_.size() - 1;
  for (int32_t id = 0; id < end_id(); ++id) {
    if (!contains(id)) continue;
    const std::string_view token = (*this)[id];
    size_t slot = xxh3_64(token.data(), token.size()) & mask;
    while (slots_[slot] != kNoToken) slot = (slot + 1) & mask;
    slots_[slot] = id;
  }
}

void BpeScratch::trim() {
  constexpr size_t kKeep = size_t{1} << 16;
  const auto shrink = [](auto& vector) {
    if (vector.capacity() > kKeep) std::remove_reference_t<decltype(vector)>().swap(vector);
  };
  shrink(symbols);
  shrink(ranks);
  shrink(next);
  shrink(previous);
  shrink(queue);
}

Bpe::Bpe(TokenTable tokens, const std::vector<Merge>& merges, BpeSettings settings)
    : tokens_(std::move(tokens)), settings_(std::move(settings)), merges_(merges) {
  has_byte_symbols_ = settings_.continuing_subword_prefix.empty() && settings_.end_of_word_suffix.empty();
  for (int b = 0; b < 256; ++b) {
    std::string printable;
    append_utf8(byte_to_printable(static_cast<uint8_t>(b)), printable);
    byte_symbols_[b] = tokens_.find(printable);
    has_byte_symbols_ = has_byte_symbols_ && byte_symbols_[b] != kNoToken;
    char code[8];
    std::snprintf(code, sizeof code, "<0x%02X>", static_cast<unsigned>(b));
    fallback_ids_[b] = tokens_.find(code);
  }
  if (has_byte_symbols_) {
    build_byte_matcher();
  } else {
    build_character_matcher();
  }
}

void Bpe::build_byte_matcher() {
  std::vector<std::string> raw(static_cast<size_t>(tokens_.end_id()));
  for (int32_t id = 0; id < tokens_.end_id(); ++id) {
    if (!tokens_.contains(id)) continue;
    if (auto bytes = printable_to_bytes(tokens_[id])) raw[id] = *std::move(bytes);
  }
  const auto symbols_of = [&](const std::string& text, std::vector<int32_t>& symbols) {
    for (const char c : text) symbols.push_back(byte_symbols_[static_cast<uint8_t>(c)]);
    return true;
  };
  matcher_ = BpeMatcher(raw, symbols_of, merges_);
  if (!settings_.ignore_merges) return;
  // Words that are tokens which merges make come out right without being looked up.
  for (int32_t id = 0; id < tokens_.end_id(); ++id) {
    if (raw[id].empty() || matcher_.is_reachable(id)) continue;
    unreachable_.insert(raw[id], id);
    longest_unreachable_bytes_ = std::max(longest_unreachable_bytes_, raw[id].size());
  }
}

void Bpe::build_character_matcher() {
  if (!settings_.continuing_subword_prefix.empty() || !settings_.end_of_word_suffix.empty()) return;
  // Symbols that do not come from the text itself must take no part in merges.
  std::vector<bool> foreign(static_cast<size_t>(tokens_.end_id()));
  if (settings_.unknown_id != kNoToken) foreign[settings_.unknown_id] = true;
  if (settings_.byte_fallback) {
    for (const int32_t id : fallback_ids_) {
      if (id != kNoToken) foreign[id] = true;
    }
  }
  for (int32_t left = 0; left < tokens_.end_id(); ++left) {
    // A foreign token that is one character could also stand for itself, and is then no foreigner.
    std::vector<int32_t> symbols;
    if (foreign[left] && append_character_symbols(tokens_[left], symbols) && symbols.size() == 1) return;
  }
  if (merges_.any_of([&](int32_t left, int32_t right) { return foreign[left] || foreign[right]; })) return;
  std::vector<std::string> texts(static_cast<size_t>(tokens_.end_id()));
  for (int32_t id = 0; id < tokens_.end_id(); ++id) texts[id] = tokens_[id];
  matcher_ = BpeMatcher(
      texts,
      [&](const std::string& text, std::vector<int32_t>& symbols) { return append_character_symbols(text, symbols); },
      merges_);
  matches_characters_ = true;
}

bool Bpe::append_character_symbols(std::string_view text, std::vector<int32_t>& symbols) const {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const begin = p;
    next_code_point(p);
    const int32_t id = tokens_.find({begin, static_cast<size_t>(p - begin)});
    if (id == kNoToken) return false;
    symbols.push_back(id);
  }
  return true;
}

bool Bpe::append_fallback(std::string_view character, std::vector<int32_t>& symbols) const {
  if (!settings_.byte_fallback) return false;
  for (const char c : character) {
    if (fallback_ids_[static_cast<uint8_t>(c)] == kNoToken) return false;
  }
  for (const char c : character) symbols.push_back(fallback_ids_[static_cast<uint8_t>(c)]);
  return true;
}

void Bpe::encode_characters(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (settings_.ignore_merges) {
    if (const int32_t id = tokens_.find(word); id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  scratch.symbols.clear();
  if (matches_characters_) {
    match_characters(word, scratch);
  } else {
    merge_characters(word, scratch);
  }
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void Bpe::match_characters(std::string_view word, BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  // Stretches of characters that have tokens, and characters that have none between them.
  bool pending_unknown = false;
  size_t at = 0;
  size_t count = 0;
  symbols.resize(word.size());  // a character takes at most as many ids as bytes
  std::vector<int32_t> bytes;
  while (at < word.size()) {
    size_t done = 0;
    const std::string_view rest = word.substr(at);
    // The pending token comes first if anything follows that has a token of its own.
    int32_t* const out = symbols.data() + count + (pending_unknown ? 1 : 0);
    const size_t matched = matcher_.encode(rest, scratch.verdicts, out, &done);
    if (matched > 0) {
      if (pending_unknown) symbols[count++] = settings_.unknown_id;
      pending_unknown = false;
      count += matched;
      at += done;
      continue;
    }
    const char* p = rest.data();
    next_code_point(p);
    const std::string_view character = rest.substr(0, static_cast<size_t>(p - rest.data()));
    at += character.size();
    bytes.clear();
    if (append_fallback(character, bytes)) {
      for (const int32_t id : bytes) symbols[count++] = id;
    } else if (settings_.unknown_id != kNoToken) {
      if (pending_unknown && !settings_.fuse_unknown) symbols[count++] = settings_.unknown_id;
      pending_unknown = true;
    }
  }
  if (pending_unknown) symbols[count++] = settings_.unknown_id;
  symbols.resize(count);
}

void Bpe::merge_characters(std::string_view word, BpeScratch& scratch) const {
  bool pending_unknown = false;
  std::string decorated;
  const char* p = word.data();
  const char* const end = p + word.size();
  while (p < end) {
    const char* const begin = p;
    next_code_point(p);
    std::string_view character(begin, static_cast<size_t>(p - begin));
    const bool prefixed = begin != word.data() && !settings_.continuing_subword_prefix.empty();
    const bool suffixed = p == end && !settings_.end_of_word_suffix.empty();
    if (prefixed || suffixed) {
      decorated.clear();
      if (prefixed) decorated += settings_.continuing_subword_prefix;
      decorated += character;
      if (suffixed) decorated += settings_.end_of_word_suffix;
      character = decorated;
    }
    if (const int32_t id = tokens_.find(character); id != kNoToken) {
      if (pending_unknown) scratch.symbols.push_back(settings_.unknown_id);
      pending_unknown = false;
      scratch.symbols.push_back(id);
      continue;
    }
    // The reference keeps an unknown token that waits to be fused behind the bytes of later characters.
    if (append_fallback(character, scratch.symbols)) continue;
    if (settings_.unknown_id != kNoToken) {
      if (pending_unknown && !settings_.fuse_unknown) scratch.symbols.push_back(settings_.unknown_id);
      pending_unknown = true;
    }
  }
  if (pending_unknown) scratch.symbols.push_back(settings_.unknown_id);
  merge(scratch);
}

void Bpe::merge(BpeScratch& scratch) const {
  constexpr size_t kShort = 40;
  if (scratch.symbols.size() < 2) return;
  if (scratch.symbols.size() <= kShort) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
}

void Bpe::merge_short(BpeScratch& scratch) const {
  int32_t* const symbols = scratch.symbols.data();
  size_t count = scratch.symbols.size();
  uint32_t ranks[64];  // of the pair (i, i + 1)
  const auto rank_of = [&](size_t i) { return merges_.rank(symbols[i], symbols[i + 1]); };
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNoRank) break;
    symbols[best] = merges_.merge(ranks[best]).result;
    for (size_t i = best + 1; i + 1 < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 2 < count; ++i) ranks[i] = ranks[i + 1];
    --count;
    if (best > 0) ranks[best - 1] = rank_of(best - 1);
    if (best + 1 < count) ranks[best] = rank_of(best);
  }
  scratch.symbols.resize(count);
}

void Bpe::merge_long(BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  const auto count = narrow<uint32_t>(symbols.size());
  const uint32_t none = UINT32_MAX;
  // A linked list over positions; ranks[i] is that of the pair (i, next[i]), which tells whether an entry
  // of the queue is out of date.
  scratch.ranks.assign(count, MergeTable::kNoRank);
  scratch.next.resize(count);
  scratch.previous.resize(count);
  scratch.queue.clear();
  for (uint32_t i = 0; i < count; ++i) {
    scratch.next[i] = i + 1 < count ? i + 1 : none;
    scratch.previous[i] = i > 0 ? i - 1 : none;
  }
  const auto entry = [](uint32_t rank, uint32_t position) { return static_cast<uint64_t>(rank) << 32 | position; };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    const uint32_t rank = merges_.rank(symbols[i], symbols[i + 1]);
    if (rank == MergeTable::kNoRank) continue;
    scratch.ranks[i] = rank;
    scratch.queue.push_back(entry(rank, i));
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(scratch.queue.begin(), scratch.queue.end(), later);
  const auto update = [&](uint32_t i) {
    const uint32_t j = scratch.next[i];
    scratch.ranks[i] = j == none ? MergeTable::kNoRank : merges_.rank(symbols[i], symbols[j]);
    if (scratch.ranks[i] == MergeTable::kNoRank) return;
    scratch.queue.push_back(entry(scratch.ranks[i], i));
    std::push_heap(scratch.queue.begin(), scratch.queue.end(), later);
  };
  while (!scratch.queue.empty()) {
    std::pop_heap(scratch.queue.begin(), scratch.queue.end(), later);
    const uint64_t top = scratch.queue.back();
    scratch.queue.pop_back();
    const auto i = static_cast<uint32_t>(top);
    if (scratch.ranks[i] != static_cast<uint32_t>(top >> 32)) continue;
    const uint32_t j = scratch.next[i];
    symbols[i] = merges_.merge(scratch.ranks[i]).result;
    symbols[j] = kNoToken;
    scratch.ranks[j] = MergeTable::kNoRank;
    scratch.next[i] = scratch.next[j];
    if (scratch.next[i] != none) scratch.previous[scratch.next[i]] = i;
    if (scratch.previous[i] != none) update(scratch.previous[i]);
    update(i);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kNoToken), symbols.end());
}

}  // namespace deltatrain::text
