#include "backend/cuda/nccl_library.h"

#include "backend/cuda/loaded_library.h"

namespace deltatrain::backend::cuda {

namespace {

Nccl load() {
  const LoadedLibrary library("several ranks on cuda", "NCCL", "libnccl.so.2");
  Nccl n{};
  library.find("ncclGetVersion", n.get_version);
  library.find("ncclGetUniqueId", n.get_unique_id);
  library.find("ncclCommInitRankConfig", n.comm_init_rank_config);
  library.find("ncclCommAbort", n.comm_abort);
  library.find("ncclCommDestroy", n.comm_destroy);
  library.find("ncclAllReduce", n.all_reduce);
  library.find("ncclReduceScatter", n.reduce_scatter);
  library.find("ncclAllGather", n.all_gather);
  library.find("ncclBroadcast", n.broadcast);
  library.find("ncclGetErrorString", n.get_error_string);
  library.find("ncclGetLastError", n.get_last_error);
  return n;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl library = load();  // immutable once made
  return library;
}

}  // namespace deltatrain::backend::cuda
