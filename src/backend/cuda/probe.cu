// Asks whether this program holds machine code for the current device, before any other kernel is
// needed.
#include <cuda_runtime.h>

#include "backend/cuda/cuda_device.h"

namespace deltatrain::backend::cuda {

namespace {
__global__ void probe_kernel() {}
}  // namespace

cudaError_t probe_machine_code() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, probe_kernel);
}

}  // namespace deltatrain::backend::cuda
