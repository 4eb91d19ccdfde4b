#include "text/utf8.h"

#include <array>
#include <cstring>

namespace deltatrain::text {

namespace {

// Length of the well-formed sequence at `p` with `left` bytes available, or 0; *bad is then the length of
// the maximal ill-formed part.
size_t well_formed_length(const unsigned char* p, size_t left, size_t* bad) {
  const unsigned char first = p[0];
  *bad = 1;
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;  // bounds of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= left || p[i] < low || p[i] > high) return 0;
    *bad = i + 1;
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

// An automaton without branches: in what follows a byte, six bits for each state say which comes next, as the place of its own
// six bits.
enum State : uint8_t {
  kBetween,
  kIllFormed,
  kOneMore,
  kTwoMore,
  kThreeMore,
  kBehindE0,
  kBehindED,
  kBehindF0,
  kBehindF4
};
constexpr int kNumStates = 9, kStateBits = 6;

constexpr State next_state(State state, unsigned byte) {
  const auto between = [&](unsigned low, unsigned high) { return byte >= low && byte <= high; };
  switch (state) {
    case kBetween:
      if (byte < 0x80) return kBetween;
      if (between(0xc2, 0xdf)) return kOneMore;
      if (byte == 0xe0) return kBehindE0;
      if (byte == 0xed) return kBehindED;
      if (between(0xe1, 0xef)) return kTwoMore;
      if (byte == 0xf0) return kBehindF0;
      if (between(0xf1, 0xf3)) return kThreeMore;
      return byte == 0xf4 ? kBehindF4 : kIllFormed;
    case kIllFormed:
      return kIllFormed;
    case kOneMore:
      return between(0x80, 0xbf) ? kBetween : kIllFormed;
    case kTwoMore:
      return between(0x80, 0xbf) ? kOneMore : kIllFormed;
    case kThreeMore:
      return between(0x80, 0xbf) ? kTwoMore : kIllFormed;
    case kBehindE0:
      return between(0xa0, 0xbf) ? kOneMore : kIllFormed;
    case kBehindED:
      return between(0x80, 0x9f) ? kOneMore : kIllFormed;
    case kBehindF0:
      return between(0x90, 0xbf) ? kTwoMore : kIllFormed;
    case kBehindF4:
      return between(0x80, 0x8f) ? kTwoMore : kIllFormed;
  }
  return kIllFormed;
}

constexpr std::array<uint64_t, 256> kTransitions = [] {
  std::array<uint64_t, 256> transitions{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (int state = 0; state < kNumStates; ++state) {
      const auto next =
          static_cast<uint64_t>(next_state(static_cast<State>(state), byte)) * kStateBits;
      transitions[byte] |= next << (state * kStateBits);
    }
  }
  return transitions;
}();

// Where a character begins, at most some twenty bytes before the first ill-formed part or the end; all from `at` to there is
// well formed.
size_t skip_well_formed(const unsigned char* data, size_t size, size_t at) {
  constexpr size_t kStep = 16;
  constexpr uint64_t kMask = 63;
  uint64_t state = kBetween * kStateBits;
  for (; at + kStep <= size; at += kStep) {
    if ((state & kMask) == kBetween * kStateBits) {
      uint64_t words[2];
      std::memcpy(words, data + at, sizeof words);
      if (((words[0] | words[1]) & 0x8080808080808080ULL) == 0) continue;
    }
    uint64_t next = state;
    for (size_t i = 0; i < kStep; ++i) next = kTransitions[data[at + i]] >> (next & kMask);
    if ((next & kMask) == kIllFormed * kStateBits) break;
    state = next;
  }
  if ((state & kMask) == kBetween * kStateBits) return at;
  // Back to the start of the character that the last step ended within.
  do --at;
  while ((data[at] & 0xc0) == 0x80);
  return at;
}

}  // namespace

size_t find_ill_formed_utf8(std::string_view text, size_t from) {
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t well_formed = skip_well_formed(data, size, from);
  while (well_formed < size) {
    size_t bad = 0;
    const size_t length = well_formed_length(data + well_formed, size - well_formed, &bad);
    if (length == 0) return well_formed;
    well_formed += length;
  }
  return std::string_view::npos;
}

size_t ill_formed_length(std::string_view text, size_t offset) {
  size_t bad = 0;
  well_formed_length(reinterpret_cast<const unsigned char*>(text.data()) + offset, text.size() - offset, &bad);
  return bad;
}

std::string replace_ill_formed_utf8(std::string_view text, int64_t* num_replaced) {
  std::string result;
  result.reserve(text.size() + 16);
  size_t from = 0;
  while (true) {
    const size_t at = find_ill_formed_utf8(text, from);
    result.append(text.substr(from, at == std::string_view::npos ? at : at - from));
    if (at == std::string_view::npos) return result;
    result += "\xef\xbf\xbd";
    if (num_replaced != nullptr) ++*num_replaced;
    from = at + ill_formed_length(text, at);
  }
}

void append_utf8(uint32_t code_point, std::string& text) {
  char bytes[4];
  text.append(bytes, write_utf8(code_point, bytes));
}

}  // namespace deltatrain::text
