// The built program as several processes of one run, for tests of ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/test_files.h"

namespace deltatrain::test {

// A TCP port of this host that was free a moment ago.
int free_port();

class ProgramRanks {
 public:
  // Where the output of the processes goes, and how a process starts: the first words of its command
  // line, before the program's name (empty: none).
  explicit ProgramRanks(std::vector<std::string> launcher = {});
  ~ProgramRanks();  // kills what still runs
  ProgramRanks(const ProgramRanks&) = delete;
  ProgramRanks& operator=(const ProgramRanks&) = delete;

  // Starts one more process with these variables beside the environment.
  void start(const std::string& arguments, const std::map<std::string, std::string>& variables,
             const std::vector<std::string>& launcher = {});
  // All ranks of a run on this host, by RANK, WORLD_SIZE, ...; the same arguments for each.
  void start_all(int size, const std::string& arguments);

  void kill(int process, int signal);
  bool has_ended(int process);
  // Waits until `condition` holds; false when it did not within the time.
  static bool wait_until(double seconds, const std::function<bool()>& condition);
  // Waits for the end of each; 137 for one that had to be killed after the time.
  std::vector<int> exit_codes(double seconds = 60);
  std::string err(int process) const;
  std::string out(int process) const;

 private:
  struct Process {
    pid_t id = 0;
    bool ended = false;
    int exit_code = 0;
  };
  bool reap(Process& process, bool wait);

  std::vector<std::string> launcher_;
  TemporaryFolder folder_;
  std::vector<Process> processes_;
};

}  // namespace deltatrain::test
