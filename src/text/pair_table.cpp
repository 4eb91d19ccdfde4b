#include "text/pair_table.h"

#include <bit>
#include <string>
#include <utility>

#include "base/check.h"

namespace deltatrain::text {

PairTable::PairTable(const std::vector<Pair>& pairs, size_t num_tokens)
    : slots_(1), blocks_(num_tokens, 0) {
  for (size_t begin = 0, end = 0; begin < pairs.size(); begin = end) {
    const uint32_t left = pairs[begin].left;
    while (end < pairs.size() && pairs[end].left == left) ++end;
    const size_t count = end - begin;
    const size_t first = slots_.size();
    uint32_t log_size = count == 1 ? 0 : static_cast<uint32_t>(std::bit_width(2 * count - 1));
    while (!fill(pairs.data() + begin, count, first, log_size)) {
      ++log_size;
      DELTATRAIN_CHECK(log_size <= kMaxLogSize,
                       std::to_string(count) + " pairs of token " + std::to_string(left));
    }
    DELTATRAIN_CHECK(first >> (32 - kLogBits) == 0, std::to_string(pairs.size()) + " pairs");
    blocks_[left] = static_cast<uint32_t>(first) << kLogBits | log_size;
  }
}

bool PairTable::fill(const Pair* pairs, size_t count, size_t first, uint32_t log_size) {
  constexpr int kMaxMoves = 64;
  slots_.resize(first);
  slots_.resize(first + (size_t{1} << log_size));
  Slot* const slots = slots_.data() + first;
  const size_t mask = (size_t{1} << log_size) - 1;
  for (size_t i = 0; i < count; ++i) {
    Slot homeless{pairs[i].right, pairs[i].rank};
    size_t place = first_place(homeless.right) & mask;
    int moves = 0;
    while (homeless.right != UINT32_MAX) {
      if (++moves > kMaxMoves) return false;
      std::swap(homeless, slots[place]);
      const size_t one = first_place(homeless.right) & mask;
      place = place == one ? second_place(homeless.right) & mask : one;
    }
  }
  return true;
}

}  // namespace deltatrain::text
