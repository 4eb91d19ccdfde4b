// Copies to the host beside the ops of a device: device/side_copy.h for CUDA.
//
// Several lanes, each a thread with a stream and two pinned blocks of its own: the card fills one
// block while the thread empties the other into the host memory that was asked for, which need not
// be pinned. The lanes take the pieces of a copy in turn. One lane is bound by what one core copies
// within host memory, several times slower than the card sends.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "device/side_copy.h"

namespace deltatrain::backend::cuda {

class SideCopyLanes {
 public:
  // Takes 32 MiB of pinned host memory. DeviceError where there is not so much.
  explicit SideCopyLanes(int device_index);
  ~SideCopyLanes();
  SideCopyLanes(const SideCopyLanes&) = delete;
  SideCopyLanes& operator=(const SideCopyLanes&) = delete;

  // For copies of what the work in `ops` so far leaves behind. One copier at a time; the lanes
  // outlive it.
  std::unique_ptr<SideCopier> make_copier(cudaStream_t ops);

 private:
  class Copier;
  class Lane;

  int device_index_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<bool> is_used_ = false;
};

}  // namespace deltatrain::backend::cuda
