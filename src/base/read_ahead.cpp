#include "base/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace deltatrain {

void read_ahead(std::span<const std::byte> part) {
  if (part.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data()) + part.size();
  // Advice: where the system won't take it, reading is slower and nothing else.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace deltatrain
