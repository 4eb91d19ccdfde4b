// A training run: data, steps, validation, checkpoints, logs, stopping and resuming.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/reporter.h"
#include "config/recipe_reader.h"
#include "device/context.h"

namespace deltatrain::train {

struct TrainOptions {
  std::filesystem::path out;
  bool resume = false;
  std::string command;               // as typed, for metrics.jsonl
  std::function<int()> stop_signal;  // number of a signal that asks to stop, or 0
  std::function<std::string()>
      algorithms;        // matrix-product choices as JSON, stored with checkpoints
  bool profile = false;  // time the third step of this process by part and op: OUT/profile/
  // Text that is gone on with at each validation step and at the end, for people to look at; needs
  // data.tokenizer. Empty: none.
  std::string sample_prompt;
};

struct TrainResult {
  int64_t steps = 0;                // done in all, earlier runs included
  int64_t skipped_steps = 0;        // left out now, because their loss or gradient was not finite
  std::optional<double> last_loss;  // of the last step done now that changed the weights
  std::optional<double> validation_loss;
  int stopped_by_signal = 0;
};

// Contexts without arena. Refuses before the first step what would not fit the device, with the
// micro-batch that would. Throws NumericError when a loss or gradient is not finite and the recipe
// says stop; the last checkpoint stays as it was.
TrainResult train(const Context& context, const Context& planning_context,
                  const ResolvedRecipe& resolved, const TrainOptions& options, Reporter& reporter);

}  // namespace deltatrain::train
