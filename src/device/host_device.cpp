#include "device/host_device.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>

namespace deltatrain {

namespace {

// The number in a file that holds one, or -1 (no such file, or the word "max").
int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace

void HostDevice::copy_to_device(void* to, const void* from_host, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from_host, bytes);
}

void HostDevice::copy_to_host(void* to_host, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from, bytes);
}

void HostDevice::copy_on_device(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void HostDevice::fill_zero(void* data, size_t bytes) {
  if (bytes > 0) std::memset(data, 0, bytes);
}

int64_t HostDevice::free_memory_bytes() {
  int64_t free_bytes = available_memory_bytes();
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && used >= 0)
    free_bytes = std::min(free_bytes, std::max<int64_t>(0, limit - used));
  return free_bytes;
}

}  // namespace deltatrain
