// Arena: one block used from both ends, planned before the first step.
//
// Tensors that live from forward to backward are taken from the bottom (save), short-lived ones
// from the top (scratch). Both ends are stacks: a Scope gives back what was taken since it was
// opened. An arena without memory (the planning form) hands out addresses that must not be read and
// records the peak, so running the real step once on it tells how large the block has to be. An
// arena of separate blocks allocates each tensor by itself, for tools that watch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/buffer.h"

namespace deltatrain {

class Arena {
 public:
  // Planning form: no memory, no limit.
  Arena();
  Arena(MemoryResource& resource, size_t bytes);
  // Separate blocks of exactly the size of their tensors, given back when the scope ends.
  static Arena of_separate_blocks(MemoryResource& resource);

  // Contents undefined. Throws DeviceError naming the size when the block is full.
  Tensor save(DType dtype, const Shape& shape);
  Tensor scratch(DType dtype, const Shape& shape);

  bool is_planning() const { return buffer_.data() == nullptr && separate_ == nullptr; }
  size_t peak_bytes() const { return peak_; }  // largest sum of both ends so far
  size_t peak_saved_bytes() const { return peak_saved_; }

  class SaveScope {
   public:
    explicit SaveScope(Arena& arena) : arena_(arena), mark_(arena.bottom_) {}
    ~SaveScope() { arena_.give_back(arena_.bottom_, mark_, arena_.saved_blocks_); }
    SaveScope(const SaveScope&) = delete;
    SaveScope& operator=(const SaveScope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

  class ScratchScope {
   public:
    explicit ScratchScope(Arena& arena) : arena_(arena), mark_(arena.top_) {}
    ~ScratchScope() { arena_.give_back(arena_.top_, mark_, arena_.scratch_blocks_); }
    ScratchScope(const ScratchScope&) = delete;
    ScratchScope& operator=(const ScratchScope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  void check_room(size_t wanted);
  Tensor take_block(DType dtype, const Shape& shape, size_t& end, std::vector<Buffer>& blocks);
  static void give_back(size_t& end, size_t mark, std::vector<Buffer>& blocks);

  Buffer buffer_;
  MemoryResource* separate_ = nullptr;  // where separate blocks come from; ends count blocks then
  std::vector<Buffer> saved_blocks_, scratch_blocks_;
  char* base_ = nullptr;
  size_t capacity_ = 0;
  size_t bottom_ = 0;  // bytes in use from the start
  size_t top_ = 0;     // bytes in use from the end
  size_t peak_ = 0;
  size_t peak_saved_ = 0;
};

}  // namespace deltatrain
