#include "backend/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "backend/cuda/cuda_check.h"

namespace deltatrain::backend::cuda {

namespace {

constexpr const char* kLibrary = "libcublasLt.so." DELTATRAIN_CUBLAS_MAJOR;

void* open_library() {
  std::string first_error;
  // The search path of the program first, then where the toolkit installs itself.
  for (const std::string& name :
       {std::string(kLibrary), std::string("/usr/local/cuda/lib64/") + kLibrary}) {
    if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr)
      return library;
    if (first_error.empty()) first_error = ::dlerror();
  }
  throw DeviceError(error_text("device cuda", "cuBLASLt",
                               std::string(kLibrary) + " on the library search path", first_error));
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(
        error_text("device cuda", kLibrary, std::string("function ") + name, "none of this name"));
  }
}

CublasLt load() {
  void* library = open_library();
  CublasLt lt{};
  find(library, "cublasLtCreate", lt.create);
  find(library, "cublasLtDestroy", lt.destroy);
  find(library, "cublasLtGetVersion", lt.get_version);
  find(library, "cublasLtGetStatusString", lt.get_status_string);
  find(library, "cublasLtMatmulDescCreate", lt.matmul_desc_create);
  find(library, "cublasLtMatmulDescDestroy", lt.matmul_desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", lt.matmul_desc_set_attribute);
  find(library, "cublasLtMatrixLayoutCreate", lt.matrix_layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", lt.matrix_layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set_attribute);
  find(library, "cublasLtMatmulAlgoGetHeuristic", lt.algo_get_heuristic);
  find(library, "cublasLtMatmulAlgoCheck", lt.algo_check);
  find(library, "cublasLtMatmulAlgoConfigGetAttribute", lt.algo_config_get_attribute);
  find(library, "cublasLtMatmul", lt.matmul);
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
