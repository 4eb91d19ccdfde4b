// Which rank this process is and where rank 0 listens, from what launchers put into the environment:
//
//   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT      torchrun, or by hand
//   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE       mpirun of Open MPI
//   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS        mpirun of MPICH and its relatives
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, ...      srun
//
// The first complete set counts. MPI itself is not used: a launcher only has to start the processes.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace deltatrain::dist {

inline constexpr int kMaxRanks = 4096;

struct RankPlace {
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;  // among the ranks of this host
  std::string address;            // of rank 0: a name or a number
  int port = 0;
  std::string origin;  // the variables that said so, for messages
};

// `variable` returns the value of an environment variable, or null. Size 1 where nothing is set.
// ConfigError for incomplete sets and values out of range, and where several hosts are used and
// nothing says where rank 0 is.
RankPlace find_rank_place(const std::function<const char*(const char*)>& variable);

// The first host of a Slurm node list: "gpu[003-005,7],x1" is gpu003. "" for a malformed list.
std::string first_slurm_host(const std::string& list);

}  // namespace deltatrain::dist
