// Input of a fuzzer as a file, for readers that map files. One file per process, in memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace deltatrain::fuzz {

class HostileFile {
 public:
  HostileFile() : fd_(::memfd_create("fuzz", 0)) {
    if (fd_ < 0) std::abort();
  }
  const std::filesystem::path& fill(const uint8_t* data, size_t size) {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size))
      std::abort();
    return path_;
  }

 private:
  int fd_;
  std::filesystem::path path_ = "/proc/self/fd/" + std::to_string(fd_);
};

// Runs a reader: what it refuses with an error of the library is well handled, anything else is a
// finding.
template <class Read>
int refuse_or_accept(const Read& read) {
  try {
    read();
  } catch (const InternalError&) {
    std::abort();  // hostile input must not reach an invariant
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace deltatrain::fuzz
