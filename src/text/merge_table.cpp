#include "text/merge_table.h"

#include <algorithm>

#include "base/check.h"

namespace deltatrain::text {

MergeTable::MergeTable(const std::vector<Merge>& merges) : size_(static_cast<int64_t>(merges.size())) {
  const uint64_t log_size = std::bit_width(std::max<size_t>(merges.size() + merges.size() / 2, 16));
  shift_ = 64 - log_size;
  entries_.assign(size_t{1} << log_size, Entry{-1, -1, kNoRank, -1});
  mask_ = entries_.size() - 1;
  const uint64_t log_bits = log_size + 3;
  filter_shift_ = 64 - log_bits;
  filter_.assign((size_t{1} << log_bits) / 64, 0);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const uint64_t h = hash(merge.left, merge.right);
    const uint64_t bit = h >> filter_shift_;
    filter_[bit >> 6] |= uint64_t{1} << (bit & 63);
    size_t slot = h >> shift_;
    while (entries_[slot].rank != kNoRank &&
           (entries_[slot].left != merge.left || entries_[slot].right != merge.right)) {
      slot = (slot + 1) & mask_;
    }
    entries_[slot] = {merge.left, merge.right, narrow<uint32_t>(rank), merge.result};
  }
}

}  // namespace deltatrain::text
