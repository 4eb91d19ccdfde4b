// Collectives between the cards of several ranks.
#pragma once

#include <memory>

#include "dist/collectives.h"

namespace deltatrain::backend::cuda {

class CudaDevice;

// By NCCL, on a stream of their own. Both outlive the result. Collective. DeviceError where NCCL is
// missing or refuses; UnsupportedError from a program that was built without it (nccl_none.cpp).
std::unique_ptr<dist::Collectives> make_nccl_collectives(CudaDevice& device,
                                                         dist::Communicator& ranks, bool nvls);

}  // namespace deltatrain::backend::cuda
