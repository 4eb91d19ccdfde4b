#include "dist/rank_place.h"

#include <charconv>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"

namespace deltatrain::dist {

namespace {

constexpr int kDefaultPort = 29500;  // torchrun's

using Variable = std::function<const char*(const char*)>;

std::optional<int> number(const Variable& variable, const char* name, int least, int most) {
  const char* text = variable(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < least || value > most) {
    throw ConfigError(
        error_text("environment", name,
                   "a number from " + std::to_string(least) + " to " + std::to_string(most),
                   "\"" + std::string(view.substr(0, 64)) + "\""));
  }
  return value;
}

std::string text_of(const Variable& variable, const char* name) {
  const char* text = variable(name);
  return text == nullptr ? "" : text;
}

struct Set {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Set kSets[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

// A port that two jobs on one host are unlikely to share, the same for all ranks of a job.
int port_of_job(const std::string& job) {
  return 20000 + static_cast<int>(xxh3_64(job.data(), job.size()) % 10000);
}

// Where rank 0 listens.
void find_address(const Variable& variable, const Set& set, RankPlace& place) {
  place.address = text_of(variable, "MASTER_ADDR");
  const std::optional<int> port = number(variable, "MASTER_PORT", 1, 65534);
  // torchrun's agent itself listens on MASTER_PORT.
  const bool is_agents = text_of(variable, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (port) place.port = *port + (is_agents ? 1 : 0);
  const std::string slurm_job =
      text_of(variable, "SLURM_JOB_ID") + "." + text_of(variable, "SLURM_STEP_ID");
  const bool by_slurm = text_of(variable, "SLURM_STEP_ID") != "";
  if (place.address.empty() && by_slurm) {
    for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
      if (place.address.empty()) place.address = first_slurm_host(text_of(variable, list));
    }
    if (!port) place.port = port_of_job(slurm_job);
  }
  if (place.address.empty()) {
    const std::optional<int> local_size = number(variable, set.local_size, 1, kMaxRanks);
    if (!local_size || *local_size != place.size) {
      throw ConfigError(error_text("environment", "MASTER_ADDR",
                                   "the host of rank 0, beside " + place.origin, "nothing"));
    }
    place.address = "127.0.0.1";  // all ranks are on this host
    if (!port) {
      const std::string job = text_of(variable, "PMIX_NAMESPACE") +
                              text_of(variable, "OMPI_MCA_ess_base_jobid") +
                              text_of(variable, "PMI_PORT") + text_of(variable, "HYDI_CONTROL_FD");
      place.port = job.empty() ? kDefaultPort : port_of_job(job);
    }
  }
  if (place.port == 0) place.port = kDefaultPort;
}

}  // namespace

std::string first_slurm_host(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  const std::string name = list.substr(0, end);
  if (end == std::string::npos || list[end] == ',') return name;
  const size_t number_end = list.find_first_of("-,]", end + 1);
  if (number_end == std::string::npos) return "";
  const std::string digits = list.substr(end + 1, number_end - end - 1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return "";
  const size_t close = list.find(']', end);
  if (close == std::string::npos) return "";
  const size_t next = list.find(',', close);
  const std::string tail =
      list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
  if (tail.find('[') != std::string::npos) return "";  // two ranges in one name
  return name + digits + tail;
}

RankPlace find_rank_place(const Variable& variable) {
  RankPlace place;
  for (const Set& set : kSets) {
    const bool is_slurm = std::string_view(set.rank) == "SLURM_PROCID";
    // A batch script has these too, without being a rank of anything.
    if (is_slurm && text_of(variable, "SLURM_STEP_ID").empty()) continue;
    const std::optional<int> size = number(variable, set.size, 1, kMaxRanks);
    const std::optional<int> rank = number(variable, set.rank, 0, kMaxRanks - 1);
    if (!size && !rank) continue;
    if (is_slurm && !(size && rank)) continue;  // of an interactive shell of Slurm's
    if (!size || !rank) {
      throw ConfigError(error_text("environment", std::string(set.rank) + " and " + set.size,
                                   "both", std::string("only ") + (size ? set.size : set.rank)));
    }
    if (*rank >= *size) {
      throw ConfigError(
          error_text("environment", set.rank,
                     "less than " + std::string(set.size) + " " + std::to_string(*size),
                     std::to_string(*rank)));
    }
    place.rank = *rank;
    place.size = *size;
    place.local_rank = number(variable, set.local_rank, 0, kMaxRanks - 1);
    place.origin = std::string(set.rank) + " and " + set.size;
    if (place.size > 1) find_address(variable, set, place);
    return place;
  }
  return place;
}

}  // namespace deltatrain::dist
