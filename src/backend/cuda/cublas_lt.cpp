#include "backend/cuda/cublas_lt.h"

#include <string>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/loaded_library.h"

namespace deltatrain::backend::cuda {

namespace {

CublasLt load() {
  const LoadedLibrary library("device cuda", "cuBLASLt", "libcublasLt.so." DELTATRAIN_CUBLAS_MAJOR);
  CublasLt lt{};
  library.find("cublasLtCreate", lt.create);
  library.find("cublasLtDestroy", lt.destroy);
  library.find("cublasLtGetVersion", lt.get_version);
  library.find("cublasLtGetStatusString", lt.get_status_string);
  library.find("cublasLtMatmulDescCreate", lt.matmul_desc_create);
  library.find("cublasLtMatmulDescDestroy", lt.matmul_desc_destroy);
  library.find("cublasLtMatmulDescSetAttribute", lt.matmul_desc_set_attribute);
  library.find("cublasLtMatrixLayoutCreate", lt.matrix_layout_create);
  library.find("cublasLtMatrixLayoutDestroy", lt.matrix_layout_destroy);
  library.find("cublasLtMatmulPreferenceCreate", lt.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", lt.preference_set_attribute);
  library.find("cublasLtMatmulAlgoGetHeuristic", lt.algo_get_heuristic);
  library.find("cublasLtMatmulAlgoCheck", lt.algo_check);
  library.find("cublasLtMatmulAlgoConfigGetAttribute", lt.algo_config_get_attribute);
  library.find("cublasLtMatmul", lt.matmul);
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt lt = load();  // immutable once made
  return lt;
}

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string("cuda: ") + call + ": " + cublas_lt().get_status_string(status));
}

}  // namespace deltatrain::backend::cuda
