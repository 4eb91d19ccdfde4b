// A model from one form on disk to another, strictly: every tensor that the model has, no other,
// each of its shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/reporter.h"
#include "checkpoint/tensor_matching.h"
#include "convert/megatron_writer.h"
#include "convert/weight_source.h"

namespace deltatrain::convert {

enum class TargetFormat : uint8_t {
  kNative,
  kHuggingFace,
  kMegatron
};  // "native", "hf", "megatron"

// Why a model can't be written in a form; empty when it can. Native checkpoints hold every model.
std::string find_export_problem(const ModelConfig& config, TargetFormat format, LayerSpec spec);

struct TargetOptions {
  std::filesystem::path to;  // does not exist, or is an empty folder
  TargetFormat format = TargetFormat::kHuggingFace;
  std::optional<DType> dtype;  // f32 or bf16; absent: as stored (Megatron with optimizer: bf16)
  std::optional<std::filesystem::path>
      tokenizer;                            // folder or tokenizer.json; absent: beside the weights
  bool round_trip = false;                  // read the result back and compare every bit
  LayerSpec layer_spec = LayerSpec::kNoTe;  // Megatron
  MegatronArgsMode megatron_args = MegatronArgsMode::kNone;  // Megatron
  int64_t max_file_bytes = 5'000'000'000;
};

struct WrittenFile {
  std::filesystem::path path;  // relative to `to`
  std::string sha256;
};

struct ConvertReport {
  std::string source;  // what `from` turned out to be
  int64_t num_tensors = 0;
  int64_t num_parameters = 0;
  checkpoint::TensorDifferences differences;
  bool written = false;    // only when there are no differences
  bool optimizer = false;  // its state was taken along
  bool lossy = false;      // a dtype was narrowed
  bool round_trip_exact = false;
  std::vector<WrittenFile> files;  // those with weights
};

// Writes the weights of `source`. Differences between its tensors and the parameters of its model
// are returned in the report, and then nothing is written. Throws ConfigError for a target that is
// in use, FileError when the disk is full, UnsupportedError for find_export_problem(), and
// CheckFailedError for a weight that is not finite, or not in the target's dtype, and when the round
// trip finds a difference; nothing is left behind then.
ConvertReport write_model(const WeightSource& source, const TargetOptions& target,
                          Reporter& reporter);

// The same from a native checkpoint, a Hugging Face folder or a Megatron checkpoint. Throws also
// FormatError or UnsupportedError for one that can't be read or is another model.
ConvertReport convert_model(const std::filesystem::path& from, const TargetOptions& target,
                            Reporter& reporter, const OpenOptions& open = {});

// "N tensors, P parameters, 0 missing, 0 extra, 0 shape mismatches", then one line per difference
// or file.
std::string to_text(const ConvertReport& report);
std::string to_json(const ConvertReport& report);

}  // namespace deltatrain::convert
