// Buffer: the owner of a block of host or device memory. Moves, never copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace deltatrain {

// Where blocks come from. Implementations: host memory here, device memory in the backends.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  // 256-byte aligned, contents undefined.
  // Throws DeviceError when there is not enough; bytes may be 0.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* data, size_t bytes) noexcept = 0;
};

MemoryResource& host_memory();

class Buffer {
 public:
  Buffer() = default;
  // DeviceError where there is not that much, which says what the block was for.
  Buffer(MemoryResource& resource, size_t bytes, const char* purpose = nullptr);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  size_t num_bytes() const { return bytes_; }
  // A contiguous tensor at a byte offset (a multiple of the element size) within the block.
  Tensor tensor(DType dtype, const Shape& shape, size_t offset_bytes = 0) const;

 private:
  MemoryResource* resource_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace deltatrain
