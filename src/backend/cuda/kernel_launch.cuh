// How kernels are started, and their shared memory of a size known at launch.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>
#include <string>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "base/check.h"

namespace deltatrain::backend::cuda {

// Grids have one axis: the others end at 65,535 blocks, which sequences times heads exceed.
template <class... Parameters, class... Arguments>
void launch(CudaDevice& device, const char* name, void (*kernel)(Parameters...), int64_t blocks,
            int threads, size_t shared_bytes, Arguments... arguments) {
  if (blocks == 0) return;
  DELTATRAIN_CHECK(blocks > 0 && blocks <= INT_MAX,
                   std::string(name) + ": " + std::to_string(blocks) + " blocks");
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes,
           device.stream()>>>(static_cast<Parameters>(arguments)...);
  device.check_launch(name);
}

// The same, but as part of a recording the kernel may begin while the one ahead still runs. It calls
// wait_for_kernels_ahead in every block before it writes anything, and before that reads only what no op of the
// recording writes: parameters, and states before their one update (Device::record).
template <class... Parameters, class... Arguments>
void launch_early(CudaDevice& device, const char* name, void (*kernel)(Parameters...),
                  int64_t blocks, int threads, size_t shared_bytes, Arguments... arguments) {
  if (!device.is_recording() || device.compute_capability() < 90) {
    return launch(device, name, kernel, blocks, threads, shared_bytes, arguments...);
  }
  if (blocks == 0) return;
  DELTATRAIN_CHECK(blocks > 0 && blocks <= INT_MAX,
                   std::string(name) + ": " + std::to_string(blocks) + " blocks");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = device.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
             "cudaLaunchKernelEx");
  device.check_launch(name);
}

// More than the 48 KiB of shared memory that a kernel may use unasked, of which `static_bytes` are its
// own variables. DeviceError where the device has less: 99 KiB per block at compute capability 8.6 and
// 8.9, 163 KiB at 8.0, 227 KiB from 9.0 on.
template <class Kernel>
void allow_shared_bytes(Kernel kernel, size_t bytes, size_t static_bytes = 0) {
  if (bytes + static_bytes > size_t{48} << 10) {
    expect_shared_bytes(bytes + static_bytes);
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
  }
}

// Multiprocessors divide their memory between cache and shared memory kernel by kernel, and wait for the kernels on
// them to end when they do it anew: kernels that are to run side by side ask for the same.
template <class Kernel>
void prefer_shared_memory(Kernel kernel) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             "cudaFuncSetAttribute");
}

// The bytes that the launch asked for, 16-byte aligned.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ uint4 s_dynamic[];
  return reinterpret_cast<T*>(s_dynamic);
}

}  // namespace deltatrain::backend::cuda
