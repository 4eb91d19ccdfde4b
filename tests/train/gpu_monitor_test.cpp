#include "train/gpu_monitor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "train/device_peak.h"

namespace deltatrain::train {
namespace {

TEST(GpuMonitorTest, ReadsWhatTheCardTells) {
  const auto monitor = open_gpu_monitor("0000:1B:00.0", FAKE_NVML);
  ASSERT_NE(monitor, nullptr);
  const GpuReading reading = monitor->read();
  EXPECT_EQ(reading.clock_mhz, 1980);
  EXPECT_EQ(reading.power_watts, 612.5);
  EXPECT_EQ(reading.used_bytes, 100);
  EXPECT_EQ(reading.temperature_celsius, std::nullopt);
}

TEST(GpuMonitorTest, WithoutTheLibraryOrTheCardThereIsNone) {
  void* const library = ::dlopen(FAKE_NVML, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto initialized = reinterpret_cast<int (*)()>(::dlsym(library, "fake_initialized"));
  EXPECT_EQ(open_gpu_monitor("", FAKE_NVML), nullptr);
  EXPECT_EQ(open_gpu_monitor("0000:1B:00.0", "libnvidia-ml-not-here.so"), nullptr);
  EXPECT_EQ(open_gpu_monitor("0000:1C:00.0", FAKE_NVML), nullptr);
  EXPECT_EQ(open_gpu_monitor("0000:1B:00.0", "libm.so.6"), nullptr);  // another library
  EXPECT_EQ(initialized(), 0) << "shut down as often as started";
  ::dlclose(library);
}

// NVIDIA's data sheets: H200 SXM 989 TFLOP/s of dense bf16, 67 of f32; A100 312 and 19.5.
TEST(DevicePeakTest, KnowsCardsByTheirNames) {
  EXPECT_NEAR(peak_flops("NVIDIA H200, compute capability 9.0", DType::kBF16).value(), 989e12,
              1e12);
  EXPECT_NEAR(peak_flops("NVIDIA H200, compute capability 9.0", DType::kF32).value(), 67e12, 1e12);
  EXPECT_NEAR(peak_flops("NVIDIA A100-SXM4-80GB", DType::kBF16).value(), 312e12, 1e12);
  EXPECT_NEAR(peak_flops("NVIDIA H100 PCIe", DType::kBF16).value(), 756e12, 1e12);
  EXPECT_EQ(peak_flops("AMD EPYC 9454, 2 threads", DType::kF32), std::nullopt);
  EXPECT_EQ(peak_flops("NVIDIA H200", DType::kF64), std::nullopt);
}

}  // namespace
}  // namespace deltatrain::train
