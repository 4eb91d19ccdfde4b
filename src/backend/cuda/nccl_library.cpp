#include "backend/cuda/nccl_library.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace deltatrain::backend::cuda {

namespace {

constexpr const char* kLibrary = "libnccl.so.2";

void* open_library() {
  std::string first_error;
  // The search path of the program first, then where the toolkit installs itself.
  for (const std::string& name :
       {std::string(kLibrary), std::string("/usr/local/cuda/lib64/") + kLibrary}) {
    if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr)
      return library;
    if (first_error.empty()) first_error = ::dlerror();
  }
  throw DeviceError(error_text("several ranks on cuda", "NCCL",
                               std::string(kLibrary) + " on the library search path", first_error));
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(error_text("several ranks on cuda", kLibrary, std::string("function ") + name,
                                 "none of this name"));
  }
}

Nccl load() {
  void* library = open_library();
  Nccl n{};
  find(library, "ncclGetVersion", n.get_version);
  find(library, "ncclGetUniqueId", n.get_unique_id);
  find(library, "ncclCommInitRankConfig", n.comm_init_rank_config);
  find(library, "ncclCommAbort", n.comm_abort);
  find(library, "ncclCommDestroy", n.comm_destroy);
  find(library, "ncclAllReduce", n.all_reduce);
  find(library, "ncclReduceScatter", n.reduce_scatter);
  find(library, "ncclAllGather", n.all_gather);
  find(library, "ncclBroadcast", n.broadcast);
  find(library, "ncclGetErrorString", n.get_error_string);
  find(library, "ncclGetLastError", n.get_last_error);
  return n;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl library = load();  // immutable once made
  return library;
}

}  // namespace deltatrain::backend::cuda
