// Stands for the management library of NVIDIA's driver: one card, at 0000:1B:00.0.
#include <cstring>

namespace {
int initialized = 0;
}

extern "C" {

int nvmlInit_v2() {
  ++initialized;
  return 0;
}
int nvmlShutdown() {
  --initialized;
  return 0;
}
int fake_initialized() { return initialized; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  *device = &initialized;
  return std::strcmp(id, "0000:1B:00.0") == 0 ? 0 : 6;  // not found
}

// Type 1 is the clock of the multiprocessors.
int nvmlDeviceGetClockInfo(void* device, int type, unsigned* megahertz) {
  *megahertz = type == 1 ? 1980 : 2619;
  return device == &initialized ? 0 : 2;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 612500;
  return device == &initialized ? 0 : 2;
}

struct Memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = 150;
  memory->free = 50;
  memory->used = 100;
  return device == &initialized ? 0 : 2;
}

// This card does not tell its temperature.
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) {
  *celsius = 99;
  return 3;  // not supported
}

}  // extern "C"
