// Checkpoints of a run, written while training goes on. A thread copies the state into host memory
// beside the next step's forward and backward pass, which only read it, then writes that snapshot;
// where device/side_copy.h can give no copier, or ranks share the state, the copy comes before that
// step.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/recipe.h"
#include "convert/weight_source.h"
#include "model/training_step.h"

namespace deltatrain::train {

// As TrainingStep::write_state, which it calls; other ranks hear of it.
using StateWriter =
    std::function<void(StatePart, const std::function<void(const Tensor& flat_X)>&)>;

class Saver {
 public:
  // Writes checkpoint.format's files and, with checkpoint.hf, hf/ in each iteration's folder.
  // `yaml` is the resolved recipe.
  Saver(std::filesystem::path folder, const Recipe& recipe, std::string yaml,
        std::vector<checkpoint::CompanionFile> companions);
  ~Saver();

  // Takes the host memory of the snapshots and touches it, on a thread beside the first steps: what
  // the system has to find and clear otherwise delays the first copy.
  void prepare(const TrainingStep& step);

  // Starts to copy the state, and to write it once it is copied, beside what follows. `step`
  // outlives the Saver. The report of the save before must have been taken.
  void save(TrainingStep& step, const checkpoint::CheckpointState& state);

  // To be called before the state changes: returns once it is copied, if a save has been started.
  // Where it is not copied yet, waits for the ops of the device first, as whoever changes the state
  // would. Rethrows what kept it from being copied.
  void finish_copy();

  struct Finished {
    checkpoint::SaveReport report;
    // What training waited for this save: in save() for the one before it to be written and for the
    // copy where no copier makes it, and in finish_copy() once the ops were done.
    double stall_seconds = 0;
    double previous_save_seconds = 0;  // of it, for the one before
    double copy_seconds = 0;           // of copying the state, beside training or not
    std::string note;  // why the copy could not be made beside the next step; empty where it was
  };
  // The finished save's report, once; rethrows its failure. kYes waits until it is finished, for
  // the sake of the next save.
  enum class Wait : uint8_t { kNo, kYes };
  std::optional<Finished> finished(Wait wait);

 private:
  // Of the `bytes` asked for, to copy into.
  char* snapshot(size_t bytes);
  checkpoint::SaveReport write(const checkpoint::CheckpointState& state,
                               const std::vector<checkpoint::NamedTensor>& model,
                               const std::vector<checkpoint::NamedTensor>& optimizer) const;

  std::filesystem::path folder_;
  Recipe recipe_;
  std::string yaml_;
  std::vector<checkpoint::CompanionFile> companions_;
  Buffer snapshot_;
  std::atomic<bool> is_wanted_ = false;  // ends the touching of its memory
  std::future<Buffer> preparing_;
  Device* device_ = nullptr;  // that of the state being copied
  double stall_seconds_ = 0;
  double previous_save_seconds_ = 0;
  double copy_seconds_ = 0;
  std::string note_;
  std::future<void> copying_;
  std::future<checkpoint::SaveReport> running_;
};

// What the ranks that write no checkpoint do while rank 0 copies a state that is spread over them.
void take_part_in_save(TrainingStep& step);

// Reads weights and optimizer state of a checkpoint into `step` through `write`, tensor by tensor
// from the file to where they belong. That names, dtypes and shapes agree is checked before
// anything is written; a FormatError for a checksum comes in the middle. Returns the bytes read.
int64_t restore(const checkpoint::CheckpointReader& reader, TrainingStep& step,
                const StateWriter& write);

}  // namespace deltatrain::train
