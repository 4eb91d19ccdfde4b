// Batches of training samples, read ahead on a thread of their own.
//
// A step consumes global_batch_size samples in the order of a SampleSource: step s is made of the
// samples [s G, (s + 1) G). Micro-batch m of the step, of rank r among W, is the contiguous block
// that starts at s G + (m W + r) b, where b is the micro-batch size; so what a step sees depends on
// neither b nor W. The position is the number of consumed samples alone, and any position is
// reached at once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/sample_source.h"

namespace deltatrain::data {

struct MicroBatch {
  std::vector<int32_t> input_ids_R;  // R = B T, row after row
  std::vector<int32_t> labels_R;     // the true next token, or -100 where no loss is taken
  std::vector<int32_t>
      sequence_offsets;            // S + 1 entries, first 0, last R; without packing the B rows
  std::vector<int64_t> samples_B;  // numbers of the samples in the order
};

struct StepBatch {
  int64_t step = 0;
  std::vector<MicroBatch> micro_batches;  // of this rank
  int64_t num_valid_tokens =
      0;  // labels that are not -100, over all ranks: the divisor of the loss
};

struct LoaderOptions {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;  // a multiple of micro_batch_size * num_ranks
  int64_t rank = 0;
  int64_t num_ranks = 1;
  int64_t prefetch_steps = 2;
};

class BatchLoader {
 public:
  // Throws ConfigError when the sizes do not divide.
  BatchLoader(std::unique_ptr<const SampleSource> source, const LoaderOptions& options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next step's batch, valid until the following call. Rethrows what reading threw (FormatError
  // for a token past the vocabulary, ConfigError past the end of the order).
  const StepBatch& next_step();

  // Continues as if `consumed_samples` samples had been consumed: a multiple of the global batch
  // size, otherwise ConfigError.
  void seek(int64_t consumed_samples);

  int64_t consumed_samples() const;  // counted when next_step() hands a step out
  double waited_seconds() const;     // time that next_step() spent waiting, in total
  const SampleSource& source() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain::data
