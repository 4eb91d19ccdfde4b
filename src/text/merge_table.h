// Pairs of neighbouring symbols that are to be joined, with rank and result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace deltatrain::text {

struct Merge {
  int32_t left, right, result;
};

class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr int32_t kMaxId = (1 << 24) - 1;

  MergeTable() : MergeTable(std::vector<Merge>{}) {}
  // In order of rank; ids from 0 to kMaxId. A pair that is listed twice has the rank of its last mention, as in the
  // reference.
  explicit MergeTable(std::vector<Merge> merges);

  // kNoRank for pairs without a merge, which most that are asked for are: the filter says so from nearer memory.
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t h = hash(left, right);
    const uint64_t bits = filter_bits(h);
    if ((filter_[h >> filter_shift_] & bits) != bits) return kNoRank;
    const size_t home = h >> shift_;
    const uint64_t tag = (h & tag_mask_) << kDistanceBits;
    for (uint64_t distance = 0; distance < kMaxDistance; ++distance) {
      const uint64_t entry = entries_[(home + distance) & mask_];
      if (entry >> kRankBits == (tag | distance)) return static_cast<uint32_t>(entry) & kRankMask;
      if (entry == kFree) return kNoRank;
    }
    const auto found = far_.find(h);
    return found == far_.end() ? kNoRank : found->second;
  }
  const Merge& merge(uint32_t rank) const { return merges_[rank]; }

  // Whether test(left, right) holds for some pair.
  template <class Test>
  bool any_of(const Test& test) const {
    for (const Merge& merge : merges_) {
      if (test(merge.left, merge.right)) return true;
    }
    return false;
  }
  int64_t size() const { return static_cast<int64_t>(merges_.size()); }

 private:
  // An entry is what remains of the pair's hash beside its home in the table, the distance from there, and the rank.
  // The hash is a bijection of 48 bits, so that home and rest are the pair.
  static constexpr int kHashBits = 48, kDistanceBits = 5, kRankBits = 27, kMinLogSize = 16;
  static constexpr uint64_t kMaxDistance = uint64_t{1} << kDistanceBits;
  static constexpr uint32_t kRankMask = (uint32_t{1} << kRankBits) - 1;
  static constexpr uint64_t kFree = UINT64_MAX;

  static uint64_t hash(int32_t left, int32_t right) {
    constexpr uint64_t kMask = (uint64_t{1} << kHashBits) - 1;
    uint64_t h = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 24 | static_cast<uint32_t>(right);
    h = h * 0x9e3779b97f4a7c15ULL & kMask;
    h ^= h >> 24;
    return h * 0xd6e8feb86659fd93ULL & kMask;
  }
  // Two bits of a word of the filter.
  static uint64_t filter_bits(uint64_t hash) {
    return uint64_t{1} << (hash >> 10 & 63) | uint64_t{1} << (hash >> 16 & 63);
  }

  std::vector<Merge> merges_;       // by rank
  std::vector<uint64_t> entries_;   // open addressing
  std::vector<uint64_t> filter_;    // by the highest bits of the hash
  std::unordered_map<uint64_t, uint32_t> far_;  // by hash: what found no place near its home
  int shift_ = 0, filter_shift_ = 0;
  uint64_t tag_mask_ = 0;
  size_t mask_ = 0;
};

}  // namespace deltatrain::text
