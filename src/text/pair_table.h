// The ranks of pairs of tokens, by number: two memory accesses at once, and no branch that depends on the pair.
//
// The pairs of each left token lie in a block of their own, so that what text of one kind needs lies together. Within it a
// pair has two places it may be at (cuckoo hashing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltatrain::text {

class PairTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Pair {
    uint32_t left, right, rank;
  };

  PairTable() = default;
  // `pairs` in order of `left`, each pair once; left and right below num_tokens < 2^24.
  PairTable(const std::vector<Pair>& pairs, size_t num_tokens);

  // The block of a left token, for rank().
  uint32_t block(uint32_t left) const { return blocks_[left]; }

  // kNoRank for pairs without a merge.
  uint32_t rank(uint32_t block, uint32_t right) const {
    const Slot* const slots = slots_.data() + (block >> kLogBits);
    const uint32_t mask = (1U << (block & ((1U << kLogBits) - 1))) - 1;
    const Slot& a = slots[first_place(right) & mask];
    const Slot& b = slots[second_place(right) & mask];
    // Masks, since of a choice the compiler makes a branch.
    const uint32_t is_a = 0U - static_cast<uint32_t>(a.right == right);
    const uint32_t is_b = 0U - static_cast<uint32_t>(b.right == right);
    return (a.rank & is_a) | (b.rank & is_b) | ~(is_a | is_b);
  }

 private:
  struct Slot {
    uint32_t right = UINT32_MAX, rank = 0;
  };
  static constexpr int kLogBits = 5;
  static constexpr uint32_t kMaxLogSize = 24;  // bits of a place
  static uint32_t first_place(uint32_t right) { return right * 0x9e3779b1U >> 8; }
  static uint32_t second_place(uint32_t right) { return right * 0x85ebca6bU >> 8; }
  bool fill(const Pair* pairs, size_t count, size_t first, uint32_t log_size);

  std::vector<Slot> slots_;  // the first is free, for tokens without pairs
  std::vector<uint32_t>
      blocks_;  // where a token's slots begin, above the logarithm of their number
};

}  // namespace deltatrain::text
