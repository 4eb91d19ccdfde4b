#include "text/merge_table.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"

namespace deltatrain::text {

MergeTable::MergeTable(std::vector<Merge> merges) : merges_(std::move(merges)) {
  DELTATRAIN_CHECK(merges_.size() < kRankMask, std::to_string(merges_.size()) + " merges");
  const int log_size = std::max<int>(kMinLogSize, std::bit_width(merges_.size() + merges_.size() / 2));
  shift_ = kHashBits - log_size;
  tag_mask_ = (uint64_t{1} << shift_) - 1;
  mask_ = (size_t{1} << log_size) - 1;
  entries_.assign(size_t{1} << log_size, kFree);
  const int log_words = log_size - 3;  // eight bits an entry
  filter_shift_ = kHashBits - log_words;
  filter_.assign(size_t{1} << log_words, 0);
  for (size_t i = 0; i < merges_.size(); ++i) {
    const Merge& merge = merges_[i];
    DELTATRAIN_CHECK(std::min(merge.left, merge.right) >= 0 && std::max(merge.left, merge.right) <= kMaxId,
                     std::to_string(merge.left) + " " + std::to_string(merge.right));
    const uint64_t h = hash(merge.left, merge.right);
    const auto rank = static_cast<uint32_t>(i);
    filter_[h >> filter_shift_] |= filter_bits(h);
    const uint64_t tag = (h & tag_mask_) << kDistanceBits;
    uint64_t distance = 0;
    for (; distance < kMaxDistance; ++distance) {
      uint64_t& entry = entries_[((h >> shift_) + distance) & mask_];
      if (entry != kFree && entry >> kRankBits != (tag | distance)) continue;
      entry = (tag | distance) << kRankBits | rank;
      break;
    }
    if (distance == kMaxDistance) far_[h] = rank;
  }
}

}  // namespace deltatrain::text
