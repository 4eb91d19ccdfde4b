// A training run: data, steps, validation, checkpoints, logs, stopping and resuming.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/reporter.h"
#include "config/recipe_reader.h"
#include "device/context.h"
#include "dist/collectives.h"

namespace deltatrain::train {

struct TrainOptions {
  std::filesystem::path out;
  bool resume = false;
  std::string command;               // as typed, for metrics.jsonl
  std::function<int()> stop_signal;  // number of a signal that asks to stop, or 0
  std::function<std::string()>
      algorithms;  // matrix-product choices as JSON, stored with checkpoints
  // Every product runs once before the first step, so that a device that chooses algorithms at first sight does so outside
  // steps and their times. Of several ranks the first does it in any case, for all.
  bool rehearse = false;
  bool profile = false;  // time the third step of this process by part and op: OUT/profile/
  // Text that is gone on with at each validation step and at the end, for people to look at; needs
  // data.tokenizer. Empty: none.
  std::string sample_prompt;
  std::string pci_bus_id;  // of the card; empty: none, or not known
  // Of several ranks: who they are, and how the device's memory gets from one to the other.
  dist::Communicator* ranks = nullptr;
  std::function<std::unique_ptr<dist::Collectives>()> collectives;
  std::function<void(const std::string&)>
      adopt_algorithms;  // takes what rank 0's algorithms() said
  // Kept at the number of steps done, from when the run folder is this run's; before: -1.
  std::atomic<int64_t>* steps_done = nullptr;
};

struct TrainResult {
  int64_t steps = 0;                // done in all, earlier runs included
  int64_t skipped_steps = 0;        // left out now, because their loss or gradient was not finite
  std::optional<double> last_loss;  // of the last step done now that changed the weights
  std::optional<double> validation_loss;
  int stopped_by_signal = 0;
};

// Contexts without arena. Every rank of a run calls this; rank 0 alone reads and writes in the run's
// folder, and speaks. Refuses before the first step what would not fit the device, with the
// micro-batch that would. Throws NumericError when a loss or gradient is not finite and the recipe
// says stop; the last checkpoint stays as it was.
TrainResult train(const Context& context, const Context& planning_context,
                  const ResolvedRecipe& resolved, const TrainOptions& options, Reporter& reporter);

}  // namespace deltatrain::train
