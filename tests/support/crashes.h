// Processes that are killed and disks that are full, for tests of what is left behind.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <functional>
#include <string>

namespace deltatrain::test {

struct Kills {
  int rounds = 100;
  uint64_t seed = 0;
  std::function<void()> once;     // what is timed: a kill comes within three times as long
  std::function<void()> forever;  // runs in a child process until it is killed
  std::function<void()> check;    // after each kill, in the test's own process
};

// Starts `forever` in a child process and kills it (SIGKILL) after a random time, round by round.
// Returns what went wrong, empty when every child was killed: one that ends by itself, with an
// exception or not, fails.
std::string kill_at_random_moments(const Kills& kills);

// While it lives, files may be limited in size, which makes write() fail as a full disk does.
class FullDisk {
 public:
  FullDisk();
  ~FullDisk();
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  void limit(rlim_t bytes) const;
  void allow_again() const;

 private:
  struct rlimit before_ {};
  void (*handler_)(int) = nullptr;
};

}  // namespace deltatrain::test
