#include "backend/cuda/loaded_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace deltatrain::backend::cuda {

LoadedLibrary::LoadedLibrary(const char* where, const char* name, const char* file)
    : where_(where), file_(file) {
  std::string first_error;
  for (const std::string& path : {file_, "/usr/local/cuda/lib64/" + file_}) {
    handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    if (first_error.empty()) first_error = ::dlerror();
  }
  throw DeviceError(error_text(where_, name, file_ + " on the library search path", first_error));
}

void* LoadedLibrary::address_of(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) {
    throw DeviceError(
        error_text(where_, file_, std::string("function ") + name, "none of this name"));
  }
  return address;
}

}  // namespace deltatrain::backend::cuda
