// The ranks of a run as the trainer sees them: one or many, one way through the code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe_reader.h"
#include "dist/communicator.h"
#include "model/training_step.h"
#include "train/saver.h"  // StateWriter

namespace deltatrain::train {

class RunRanks {
 public:
  // null: this process alone.
  explicit RunRanks(dist::Communicator* ranks) : ranks_(ranks) {}

  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  int local_size() const { return ranks_ == nullptr ? 1 : ranks_->local_size(); }
  bool is_first() const { return rank() == 0; }

  // Takes the timeouts of the recipe. ConfigError where the number of ranks does not divide the
  // global batch, or a rank has another recipe: naming rank, host and key. Paths may differ.
  void begin(const ResolvedRecipe& resolved);
  void agree(std::string_view what, const std::string& value);

  std::string broadcast(std::string_view what, const std::string& text);
  // Every rank's text in the order of ranks; "" from one whose text is too long for a message.
  std::vector<std::string> gather(std::string_view what, const std::string& text);
  // CollectiveError when a rank is lost.
  void check() const;
  // This rank waits for the others, while one lives.
  std::unique_ptr<dist::Communicator::Call> waiting(std::string_view call);

  // Where this rank is, for the others, should it be lost.
  void at(int64_t step, std::string_view call);

  // The largest of all ranks' numbers.
  int most(std::string_view call, int number);
  // CheckFailedError, on every rank, where one has another checksum of its weights.
  void compare_weights(int64_t step, uint64_t checksum);
  // Returns once every rank has just said that it lives.
  void meet(std::string_view call);

  // Rank 0 sets parts of the state, and ends with counters that every rank gets; the others follow.
  StateWriter writer(TrainingStep& step);
  std::string share(const std::string& counters);
  std::string follow(TrainingStep& step);

 private:
  dist::Communicator* ranks_;
};

}  // namespace deltatrain::train
