// NCCL, opened when the first collective of several ranks is made: a program that trains on one card
// starts without it.
#pragma once

#include <nccl.h>

namespace deltatrain::backend::cuda {

struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
};

// Opens the library on the first call. DeviceError with the loader's own text where it is missing.
const Nccl& nccl();

}  // namespace deltatrain::backend::cuda
