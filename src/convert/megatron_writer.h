// Writing Megatron's model_optim_rng.pt. Names, layouts: docs/formats/megatron.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "convert/megatron_layout.h"
#include "convert/weight_source.h"

namespace deltatrain::convert {

enum class MegatronArgsMode : uint8_t {
  kNone,       // no args, no numpy: torch.load takes it with weights_only=True
  kNamespace,  // what Megatron needs to resume: args, and the states of its generators
};

struct MegatronTarget {
  LayerSpec spec = LayerSpec::kNoTe;
  MegatronArgsMode args = MegatronArgsMode::kNone;
  DType dtype = DType::kBF16;  // of the weights: bf16 with f32 masters beside, or f32
};

// Whether write_megatron_file() will write optimizer and scheduler: the source has the state, and
// the recipe says what Megatron wants to know of it.
bool writes_optimizer(const WeightSource& source);

// Writes one file, streaming: a block of one tensor is in memory at a time. Parameters pass
// find_megatron_problem(). `on_tensor` hears the name of each tensor before it is written. The file
// appears whole and flushed, or not at all.
void write_megatron_file(const WeightSource& source, const MegatronTarget& target,
                         const std::filesystem::path& file,
                         const std::function<void(const std::string&)>& on_tensor);

// Writes FOLDER/iter_NNNNNNN with mp_rank_00/model_optim_rng.pt and the companions in it, and then
// the tracker: atomic as checkpoint::save_checkpoint is, with the same errors. `before_file` as in
// checkpoint::SaveOptions.
checkpoint::SaveReport save_megatron_checkpoint(
    const WeightSource& source, const MegatronTarget& target, const std::filesystem::path& folder,
    const checkpoint::SaveOptions& options,
    const std::function<void(const std::string&)>& on_tensor);

}  // namespace deltatrain::convert
