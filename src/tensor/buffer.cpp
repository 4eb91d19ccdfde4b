#include "tensor/buffer.h"

#include <sys/mman.h>  // madvise

#include <cstdlib>
#include <string>
#include <utility>

#include "base/check.h"

namespace deltatrain {

namespace {

// Large blocks ask for pages of 2 MiB: with pages of 4 KiB, loops over tens of megabytes spend a
// fifth to a third of their time on address translation.
constexpr size_t kLargePage = size_t{2} << 20;
constexpr size_t kLargeBlock = 2 * kLargePage;

class HostMemory final : public MemoryResource {
 public:
  void* allocate(size_t bytes) override {
    const size_t alignment = bytes >= kLargeBlock ? kLargePage : 256;
    const size_t padded = (bytes + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, padded == 0 ? alignment : padded);
    if (data == nullptr) {
      throw DeviceError("host memory: expected " + std::to_string(bytes) +
                        " free bytes, got fewer");
    }
    // Refused where the system has no such pages; the block works either way.
    if (alignment == kLargePage) static_cast<void>(::madvise(data, padded, MADV_HUGEPAGE));
    return data;
  }
  void release(void* data, size_t) noexcept override { std::free(data); }
};

}  // namespace

MemoryResource& host_memory() {
  static HostMemory memory;  // stateless
  return memory;
}

Buffer::Buffer(MemoryResource& resource, size_t bytes, const char* purpose)
    : resource_(&resource), bytes_(bytes) {
  try {
    data_ = resource.allocate(bytes);
  } catch (const DeviceError& error) {
    if (purpose == nullptr) throw;
    throw DeviceError(std::string(error.what()) + " (for " + purpose + ")");
  }
}

Buffer::~Buffer() {
  if (data_ != nullptr) resource_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : resource_(std::exchange(other.resource_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(resource_, other.resource_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Tensor Buffer::tensor(DType dtype, const Shape& shape, size_t offset_bytes) const {
  const size_t needed =
      offset_bytes + static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype));
  DELTATRAIN_CHECK(needed <= bytes_,
                   std::to_string(needed) + " bytes wanted of " + std::to_string(bytes_));
  return Tensor(static_cast<char*>(data_) + offset_bytes, dtype, shape);
}

}  // namespace deltatrain
