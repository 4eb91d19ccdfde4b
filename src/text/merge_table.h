// Pairs of neighbouring symbols that are to be joined, with rank and result.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltatrain::text {

struct Merge {
  int32_t left, right, result;
};

class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Entry {
    int32_t left, right;
    uint32_t rank;
    int32_t result;
  };

  MergeTable() : MergeTable(std::vector<Merge>{}) {}
  // In order of rank. A pair that is listed twice has the rank of its last mention, as in the reference.
  explicit MergeTable(const std::vector<Merge>& merges);

  const Entry* find(int32_t left, int32_t right) const {
    const uint64_t h = hash(left, right);
    // Most pairs that are asked for have no merge; the filter says so from nearer memory.
    const uint64_t bit = h >> filter_shift_;
    if ((filter_[bit >> 6] >> (bit & 63) & 1) == 0) return nullptr;
    size_t slot = h >> shift_;
    while (entries_[slot].rank != kNoRank) {
      if (entries_[slot].left == left && entries_[slot].right == right) return &entries_[slot];
      slot = (slot + 1) & mask_;
    }
    return nullptr;
  }
  uint32_t rank(int32_t left, int32_t right) const {
    const Entry* entry = find(left, right);
    return entry == nullptr ? kNoRank : entry->rank;
  }
  // Whether test(left, right) holds for some pair.
  template <class Test>
  bool any_of(const Test& test) const {
    for (const Entry& entry : entries_) {
      if (entry.rank != kNoRank && test(entry.left, entry.right)) return true;
    }
    return false;
  }
  int64_t size() const { return size_; }

 private:
  static uint64_t hash(int32_t left, int32_t right) {
    uint64_t h = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    h *= 0x9e3779b97f4a7c15ULL;
    h ^= h >> 32;
    return h * 0xd6e8feb86659fd93ULL;
  }

  std::vector<Entry> entries_;    // open addressing
  std::vector<uint64_t> filter_;  // one bit for each pair's hash
  uint64_t filter_shift_ = 0;
  uint64_t shift_ = 0;
  size_t mask_ = 0;
  int64_t size_ = 0;
};

}  // namespace deltatrain::text
