#include "train/gpu_monitor.h"

#include <dlfcn.h>

namespace deltatrain::train {

namespace {

// The part of the library's interface that is used; its result 0 is success.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;  // NOLINT(google-runtime-int): the library's types
};
constexpr int kMultiprocessorClock = 1, kGpuTemperature = 0;

class NvmlMonitor final : public GpuMonitor {
 public:
  explicit NvmlMonitor(void* library) : library_(library) {
    find("nvmlInit_v2", initialize_);
    find("nvmlShutdown", shut_down_);
    find("nvmlDeviceGetHandleByPciBusId_v2", find_device_);
    find("nvmlDeviceGetClockInfo", read_clock_);
    find("nvmlDeviceGetPowerUsage", read_power_);
    find("nvmlDeviceGetMemoryInfo", read_memory_);
    find("nvmlDeviceGetTemperature", read_temperature_);
  }
  ~NvmlMonitor() override {
    if (initialized_ && shut_down_ != nullptr) shut_down_();
    ::dlclose(library_);
  }
  NvmlMonitor(const NvmlMonitor&) = delete;
  NvmlMonitor& operator=(const NvmlMonitor&) = delete;

  bool begin(const std::string& pci_bus_id) {
    initialized_ = initialize_ != nullptr && find_device_ != nullptr && initialize_() == 0;
    return initialized_ && find_device_(pci_bus_id.c_str(), &device_) == 0;
  }

  GpuReading read() override {
    GpuReading reading;
    unsigned value = 0;
    NvmlMemory memory{};
    if (read_clock_ != nullptr && read_clock_(device_, kMultiprocessorClock, &value) == 0)
      reading.clock_mhz = value;
    if (read_power_ != nullptr && read_power_(device_, &value) == 0)
      reading.power_watts = 1e-3 * value;
    if (read_memory_ != nullptr && read_memory_(device_, &memory) == 0)
      reading.used_bytes = static_cast<double>(memory.used);
    if (read_temperature_ != nullptr && read_temperature_(device_, kGpuTemperature, &value) == 0)
      reading.temperature_celsius = value;
    return reading;
  }

 private:
  template <class Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }

  void* library_;
  bool initialized_ = false;
  NvmlDevice device_ = nullptr;
  int (*initialize_)() = nullptr;
  int (*shut_down_)() = nullptr;
  int (*find_device_)(const char*, NvmlDevice*) = nullptr;
  int (*read_clock_)(NvmlDevice, int, unsigned*) = nullptr;
  int (*read_power_)(NvmlDevice, unsigned*) = nullptr;
  int (*read_memory_)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*read_temperature_)(NvmlDevice, int, unsigned*) = nullptr;
};

}  // namespace

std::unique_ptr<GpuMonitor> open_gpu_monitor(const std::string& pci_bus_id, const char* library) {
  if (pci_bus_id.empty()) return nullptr;
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto monitor = std::make_unique<NvmlMonitor>(handle);
  if (!monitor->begin(pci_bus_id)) return nullptr;
  return monitor;
}

}  // namespace deltatrain::train
