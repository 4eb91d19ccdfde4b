// SIGTERM and SIGINT as something to ask for between pieces of work.
#pragma once

#include <csignal>
#include <cstdint>
#include <ctime>

namespace deltatrain::cli {

// SIGTERM and SIGINT stay blocked in every thread, and are asked for between steps. There is no
// handler on purpose: a signal that interrupts a matrix product would write its frame where
// oneDNN's kernels keep data below the stack pointer (seen: one run in five with a broken heap).
class StopSignals {
 public:
  // What a second signal does: end the program, or, with several ranks, whose launcher may send more
  // than one and has SIGKILL to insist, no more than the first.
  enum class Second : uint8_t { kEndsAtOnce, kOnlyNoted };

  // Before any other thread starts: they inherit the mask.
  explicit StopSignals(Second second = Second::kEndsAtOnce) : second_(second) {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }

  // The number of a signal that came since the last call, or 0.
  int take() const {
    const timespec no_wait{};
    const int signal = sigtimedwait(&set_, nullptr, &no_wait);
    if (signal <= 0) return 0;
    if (second_ == Second::kEndsAtOnce) pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    return signal;
  }

 private:
  Second second_;
  sigset_t set_{};
};

}  // namespace deltatrain::cli
