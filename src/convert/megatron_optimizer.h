// The optimizer's state in Megatron's checkpoints, by parameter. Internal to the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/megatron_layout.h"
#include "formats/torch_file.h"

namespace deltatrain::convert {

// A tensor of one of the files.
struct MegatronStored {
  const formats::TorchFile* file = nullptr;
  formats::TorchTensor tensor;
};

struct MegatronMoments {
  std::optional<MegatronStored> master;  // absent where the model itself is f32
  MegatronStored exp_avg, exp_avg_sq;
};

struct MegatronOptimizer {
  std::map<std::string, MegatronMoments> moments;  // by Megatron name
  std::optional<int64_t> completed_steps;
  std::unique_ptr<formats::TorchFile> distributed;  // distrib_optim.pt, where that holds them
};

// `weights`: the parameters in the order of the file's model. Absent when the checkpoint holds no
// optimizer. FormatError or UnsupportedError naming the file when its state doesn't fit the
// parameters: another number of tensors, another size, or masters that don't round to the weights.
std::optional<MegatronOptimizer> read_megatron_optimizer(
    const formats::TorchFile& file,
    const std::vector<std::pair<std::string, MegatronStored>>& weights);

}  // namespace deltatrain::convert
