// Copies from a device to host memory beside its ops: what a device can do on top of Device.
#pragma once

#include <cstddef>
#include <memory>

#include "device/context.h"

namespace deltatrain {

// May be used on another thread than the context, by one thread at a time; the device outlives it.
class SideCopier {
 public:
  virtual ~SideCopier() = default;
  // Returns when the bytes are there.
  virtual void copy_to_host(void* to_host, const void* from, size_t bytes) = 0;
};

// Implemented by devices that have a way of their own.
class SideCopyingDevice {
 public:
  virtual ~SideCopyingDevice() = default;
  // DeviceError where the surroundings do not allow it now.
  virtual std::unique_ptr<SideCopier> make_side_copier() = 0;
};

// For copies of what the ops so far leave behind. Ops after this call run beside them, and must not
// write what is being copied. One copier at a time. On devices that have no way of their own, whose
// memory is the host's, it is Device::copy_to_host on the copier's thread. DeviceError where there is
// none to be had now.
std::unique_ptr<SideCopier> make_side_copier(Device& device);

}  // namespace deltatrain
