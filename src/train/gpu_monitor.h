// Clock, power and memory of a card, from NVIDIA's management library where it is found.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace deltatrain::train {

struct GpuReading {                 // none: the card or its driver does not tell
  std::optional<double> clock_mhz;  // of the multiprocessors
  std::optional<double> power_watts;
  std::optional<double> used_bytes;  // by every process on the card
  std::optional<double> temperature_celsius;
};

class GpuMonitor {
 public:
  virtual ~GpuMonitor() = default;
  virtual GpuReading read() = 0;
};

// `pci_bus_id`: "0000:1B:00.0". `library` is opened, not linked: null where it is not there, or
// knows no such card.
std::unique_ptr<GpuMonitor> open_gpu_monitor(const std::string& pci_bus_id,
                                             const char* library = "libnvidia-ml.so.1");

}  // namespace deltatrain::train
