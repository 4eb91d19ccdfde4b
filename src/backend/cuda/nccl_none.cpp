// Stands in for nccl_collectives.cpp where the header of NCCL was missing when this was built.
#include "backend/cuda/nccl_collectives.h"
#include "base/error.h"

namespace deltatrain::backend::cuda {

std::unique_ptr<dist::Collectives> make_nccl_collectives(CudaDevice&, dist::Communicator&, bool) {
  throw UnsupportedError(error_text("device cuda", "several ranks",
                                    "a program built with nccl.h (DELTATRAIN_NCCL_INCLUDE)",
                                    "one without it"));
}

}  // namespace deltatrain::backend::cuda
