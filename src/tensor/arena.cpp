#include "tensor/arena.h"

#include <algorithm>

#include "base/check.h"

namespace deltatrain {

namespace {
constexpr size_t kAlignment = 256;

size_t padded_bytes(DType dtype, const Shape& shape) {
  const auto bytes = static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype));
  return std::max<size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
}
}  // namespace

// Addresses of the planning form start at a page that no program maps.
Arena::Arena() : base_(reinterpret_cast<char*>(kAlignment)), capacity_(size_t{1} << 62) {}

Arena::Arena(MemoryResource& resource, size_t bytes)
    : buffer_(resource, bytes, "activations and scratch"),
      base_(static_cast<char*>(buffer_.data())),
      capacity_(bytes / kAlignment * kAlignment) {}

Arena Arena::of_separate_blocks(MemoryResource& resource) {
  Arena arena;
  arena.separate_ = &resource;
  return arena;
}

Tensor Arena::take_block(DType dtype, const Shape& shape, size_t& end,
                         std::vector<Buffer>& blocks) {
  const int64_t bytes = shape.num_elements() * dtype_bytes(dtype);
  blocks.emplace_back(*separate_, static_cast<size_t>(std::max<int64_t>(1, bytes)));
  ++end;
  return Tensor(blocks.back().data(), dtype, shape);
}

void Arena::give_back(size_t& end, size_t mark, std::vector<Buffer>& blocks) {
  end = mark;
  while (blocks.size() > mark) blocks.pop_back();
}

void Arena::check_room(size_t wanted) {
  if (bottom_ + top_ + wanted > capacity_) {
    throw DeviceError("arena: expected room for " + std::to_string(wanted) + " bytes, got " +
                      std::to_string(capacity_ - bottom_ - top_) + " of " +
                      std::to_string(capacity_));
  }
}

Tensor Arena::save(DType dtype, const Shape& shape) {
  if (separate_ != nullptr) return take_block(dtype, shape, bottom_, saved_blocks_);
  const size_t bytes = padded_bytes(dtype, shape);
  check_room(bytes);
  const Tensor tensor(base_ + bottom_, dtype, shape);
  bottom_ += bytes;
  peak_ = std::max(peak_, bottom_ + top_);
  peak_saved_ = std::max(peak_saved_, bottom_);
  return tensor;
}

Tensor Arena::scratch(DType dtype, const Shape& shape) {
  if (separate_ != nullptr) return take_block(dtype, shape, top_, scratch_blocks_);
  const size_t bytes = padded_bytes(dtype, shape);
  check_room(bytes);
  top_ += bytes;
  peak_ = std::max(peak_, bottom_ + top_);
  return Tensor(base_ + (capacity_ - top_), dtype, shape);
}

}  // namespace deltatrain
