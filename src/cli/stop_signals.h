// SIGTERM and SIGINT as something to ask for between pieces of work.
#pragma once

#include <csignal>
#include <ctime>

namespace deltatrain::cli {

// SIGTERM and SIGINT stay blocked in every thread, and are asked for between steps. There is no
// handler on purpose: a signal that interrupts a matrix product would write its frame where
// oneDNN's kernels keep data below the stack pointer (seen: one run in five with a broken heap).
class StopSignals {
 public:
  // Before any other thread starts: they inherit the mask.
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }

  // The number of a signal that came since the last call, or 0. After the first, a second one ends
  // the program at once.
  int take() const {
    const timespec no_wait{};
    const int signal = sigtimedwait(&set_, nullptr, &no_wait);
    if (signal <= 0) return 0;
    pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    return signal;
  }

 private:
  sigset_t set_{};
};

}  // namespace deltatrain::cli
