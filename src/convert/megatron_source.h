// Megatron's checkpoints as weights under Hugging Face names: iter_NNNNNNN/mp_rank_00/
// model_optim_rng.pt, with the optimizer's state in it or beside it in distrib_optim.pt. Nothing in
// the files is executed (formats/pickle.h). Names, layouts: docs/formats/megatron.md.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/megatron_layout.h"
#include "convert/weight_source.h"

namespace deltatrain::convert {

// The model_optim_rng.pt that `path` stands for: a folder with the tracker (or with checkpoints/ in
// it), one iteration's folder, its mp_rank_00, or the file itself. Absent when there is nothing of
// the kind. UnsupportedError, naming them, for the forms that are not read: several ranks of one
// model, torch_dist and torch_dcp folders.
std::optional<std::filesystem::path> find_megatron_checkpoint(const std::filesystem::path& path);

// Steps whose folder holds a Megatron checkpoint, ascending.
std::vector<int64_t> list_megatron_checkpoints(const std::filesystem::path& folder);

// Opens and checks the whole tree before any value is read. The model is `options.config`, or that
// of config.json beside the file, or that of the Namespace `args` in it; where two of them speak of
// one value they have to agree. FormatError, ConfigError or UnsupportedError naming the file for
// anything else: another model than the tensors', leaked biases or LayerNorm, latent attention
// under Transformer Engine, an optimizer whose tensors don't match the parameters.
std::unique_ptr<WeightSource> open_megatron(const std::filesystem::path& path,
                                            const OpenOptions& options = {});

// Checks every CRC-32 of the files. FormatError for one that is wrong.
void verify_megatron_checksums(const std::filesystem::path& file);

}  // namespace deltatrain::convert
