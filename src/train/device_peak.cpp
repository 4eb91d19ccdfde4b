#include "train/device_peak.h"

namespace deltatrain::train {

namespace {

struct Card {
  std::string_view name;
  double bf16_tflops, f32_tflops;
};

// Longer names before the ones that they start with.
constexpr Card kCards[] = {
    {"NVIDIA A100", 312, 19.5},    {"NVIDIA H100 PCIe", 756, 51}, {"NVIDIA H100 NVL", 835, 60},
    {"NVIDIA H100", 989.4, 66.9},  {"NVIDIA H200 NVL", 835, 60},  {"NVIDIA H200", 989.4, 66.9},
    {"NVIDIA GH200", 989.4, 66.9}, {"NVIDIA B200", 2250, 75},
};

}  // namespace

std::optional<double> peak_flops(std::string_view description, DType dtype) {
  for (const Card& card : kCards) {
    if (!description.starts_with(card.name)) continue;
    if (dtype == DType::kBF16) return card.bf16_tflops * 1e12;
    if (dtype == DType::kF32) return card.f32_tflops * 1e12;
  }
  return {};
}

}  // namespace deltatrain::train
