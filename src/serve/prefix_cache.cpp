#include "serve/prefix_cache.h"

#include <algorithm>

#include "base/hash.h"

namespace deltatrain::serve {

uint64_t prefix_digest(std::span<const int32_t> tokens) {
  return xxh3_64(tokens.data(), tokens.size_bytes());
}

PrefixCache::PrefixCache(const decode::TileDecoder& decoder, int64_t num_entries)
    : context_(decoder.context()),
      dtype_(context_.activation_dtype),
      width_(decoder.model().config().hidden_size),
      slots_(static_cast<size_t>(num_entries)) {
  if (num_entries == 0) return;
  states_ = decoder.make_state(num_entries);
  hidden_ = Buffer(context_.device->memory(),
                   static_cast<size_t>(num_entries * width_ * dtype_bytes(dtype_)));
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].entry.slot = static_cast<int64_t>(i);
}

PrefixCache::Slot* PrefixCache::slot_of(std::span<const int32_t> tokens) {
  const auto found = by_digest_.find(prefix_digest(tokens));
  if (found == by_digest_.end()) return nullptr;
  Slot& slot = slots_[found->second];
  return std::ranges::equal(slot.tokens, tokens) ? &slot : nullptr;
}

const PrefixCache::Entry* PrefixCache::find(std::span<const int32_t> tokens, int64_t num_top) {
  Slot* slot = slot_of(tokens);
  if (slot == nullptr || slot->entry.num_top < num_top) return nullptr;
  slot->last_use = ++clock_;
  return &slot->entry;
}

void PrefixCache::insert(std::span<const int32_t> tokens, const decode::State& state, int64_t from,
                         const Tensor& hidden_D, int64_t num_top,
                         std::vector<TokenLogprobs> logprobs) {
  if (slots_.empty()) return;
  Slot* slot = slot_of(tokens);
  if (slot != nullptr && slot->entry.num_top >= num_top) {
    slot->last_use = ++clock_;
    return;
  }
  if (slot == nullptr) {
    const uint64_t digest = prefix_digest(tokens);
    const auto same_digest = by_digest_.find(digest);
    slot = same_digest != by_digest_.end()
               ? &slots_[same_digest->second]
               : &*std::ranges::min_element(slots_, {}, &Slot::last_use);
    if (slot->last_use > 0) by_digest_.erase(slot->digest);
    slot->tokens.assign(tokens.begin(), tokens.end());
    slot->digest = digest;
    by_digest_[digest] = static_cast<size_t>(slot->entry.slot);
  }
  states_->copy_sequence(context_, state, from, slot->entry.slot);
  context_.device->copy_on_device(hidden_row(slot->entry).raw(), hidden_D.raw(),
                                  static_cast<size_t>(hidden_D.num_bytes()));
  slot->entry.num_top = num_top;
  slot->entry.logprobs = std::move(logprobs);
  slot->last_use = ++clock_;
}

Tensor PrefixCache::hidden_row(const Entry& entry) const {
  return hidden_.tensor(dtype_, {width_},
                        static_cast<size_t>(entry.slot * width_ * dtype_bytes(dtype_)));
}

}  // namespace deltatrain::serve
