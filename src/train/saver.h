// Checkpoints of a run, written while training goes on:
// a snapshot in host memory, then a thread writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/recipe.h"
#include "convert/weight_source.h"
#include "model/training_step.h"

namespace deltatrain::train {

// As TrainingStep::write_state, which it calls; other ranks hear of it.
using StateWriter = std::function<void(StatePart, const std::function<void(const Tensor& flat_X)>&)>;

class Saver {
 public:
  // Writes checkpoint.format's files and, with checkpoint.hf, hf/ in each iteration's folder.
  // `yaml` is the resolved recipe.
  Saver(std::filesystem::path folder, const Recipe& recipe, std::string yaml,
        std::vector<checkpoint::CompanionFile> companions);
  ~Saver();

  // Takes the host memory of the snapshots and touches it, beside the first steps: what the system
  // has to find and clear otherwise stalls the first save.
  void prepare(TrainingStep& step);

  // Copies the tensors and starts to write. The report of the save before must have been taken.
  void save(TrainingStep& step, const checkpoint::CheckpointState& state);

  // The finished save's report, once; rethrows its failure. kYes waits until it is finished.
  enum class Wait : uint8_t { kNo, kYes };
  std::optional<checkpoint::SaveReport> finished(Wait wait);

  double last_snapshot_seconds() const { return snapshot_seconds_; }

 private:
  checkpoint::SaveReport write(const checkpoint::CheckpointState& state,
                               const std::vector<checkpoint::NamedTensor>& model,
                               const std::vector<checkpoint::NamedTensor>& optimizer) const;

  std::filesystem::path folder_;
  Recipe recipe_;
  std::string yaml_;
  std::vector<checkpoint::CompanionFile> companions_;
  Buffer snapshot_;
  std::future<Buffer> preparing_;
  double snapshot_seconds_ = 0;
  std::future<checkpoint::SaveReport> running_;
};

// What the ranks that write no checkpoint do while rank 0 copies a state that is spread over them.
void take_part_in_save(TrainingStep& step);

// Reads weights and optimizer state of a checkpoint into `step` through `write`, after checking that
// names, shapes and checksums all agree.
void restore(const checkpoint::CheckpointReader& reader, TrainingStep& step,
             const StateWriter& write);

}  // namespace deltatrain::train
