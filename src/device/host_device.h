// Device whose memory is the host's: for backends that compute on the processor.
#pragma once

#include <string>

#include "device/context.h"

namespace deltatrain {

class HostDevice final : public Device {
 public:
  HostDevice(DeviceKind kind, std::string description)
      : kind_(kind), description_(std::move(description)) {}

  DeviceKind kind() const override { return kind_; }
  MemoryResource& memory() override { return host_memory(); }
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void copy_on_device(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* data, size_t bytes) override;
  void synchronize() override {}
  // What the system says it can give without swapping,
  // or the rest of a control group's limit if less.
  int64_t free_memory_bytes() override;
  const char* description() const override { return description_.c_str(); }

 private:
  DeviceKind kind_;
  std::string description_;
};

}  // namespace deltatrain
