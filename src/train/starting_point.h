// What a run starts from when it doesn't start from random weights: a checkpoint of its own or of
// another run, native or Megatron's, and how much of it is taken. Internal to the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "convert/weight_source.h"
#include "model/training_step.h"
#include "train/saver.h"  // StateWriter

namespace deltatrain::train {

// The checkpoint that a run's folder, a checkpoints folder or one iteration means: `step`, or the
// tracker's, or with `fallback` the newest that passes every check (why newer ones were passed over
// goes into `problems`). FormatError when there is none.
std::filesystem::path locate_checkpoint(const std::filesystem::path& path,
                                        std::optional<int64_t> step, bool fallback,
                                        std::vector<std::string>* problems);

// How much of a checkpoint is taken.
struct LoadChoice {
  bool finetune = false;
  bool no_load_optim = false;
  bool no_load_rng = false;
};

struct StartingPoint {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t completed_steps = 0;
  std::optional<std::string> recipe;  // YAML of the run that saved it, where its counters are taken
  int64_t read_bytes = 0;             // as they are stored
  std::vector<std::string> log;       // what was taken and what it means, a line each
};

// Reads weights (the masters where there are such) and, as `choice` says, moments and counters into
// `step` through `write`. Names, shapes and the model have to agree with the recipe's; FormatError
// or ConfigError otherwise, with everything that differs, before anything is changed. The whole of
// what `train` saved in the native form goes from its files straight to where it belongs; a
// FormatError for a checksum then comes in the middle.
StartingPoint load_starting_point(const std::filesystem::path& path, const Recipe& recipe,
                                  const LoadChoice& choice, TrainingStep& step,
                                  const StateWriter& write);

}  // namespace deltatrain::train
