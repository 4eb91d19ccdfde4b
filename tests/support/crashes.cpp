#include "support/crashes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

namespace deltatrain::test {

std::string kill_at_random_moments(const Kills& kills) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int i = 0; i < 3; ++i) kills.once();
  const auto span = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  std::mt19937_64 random(kills.seed);
  for (int round = 0; round < kills.rounds; ++round) {
    const pid_t child = ::fork();
    if (child < 0) return "fork failed";
    if (child == 0) {
      try {
        kills.forever();
      } catch (...) {
      }
      ::_exit(1);
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<uint64_t>(span.count() + 1)));
    ::kill(child, SIGKILL);
    int status = 0;
    if (::waitpid(child, &status, 0) != child) return "waitpid failed";
    if (!WIFSIGNALED(status))
      return "round " + std::to_string(round) + ": the process ended by itself with status " +
             std::to_string(status);
    kills.check();
  }
  return "";
}

FullDisk::FullDisk() {
  ::getrlimit(RLIMIT_FSIZE, &before_);
  handler_ = ::signal(SIGXFSZ, SIG_IGN);
}

FullDisk::~FullDisk() {
  allow_again();
  ::signal(SIGXFSZ, handler_);
}

void FullDisk::limit(rlim_t bytes) const {
  struct rlimit limited = before_;
  limited.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limited);
}

void FullDisk::allow_again() const { ::setrlimit(RLIMIT_FSIZE, &before_); }

}  // namespace deltatrain::test
