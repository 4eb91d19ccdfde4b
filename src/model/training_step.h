// The pieces of one optimizer step on one device: forward and backward of micro-batches, the
// update, and held-out loss. Owns parameters, optimizer state and the arena; planned before
// anything is allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "layers/parameters.h"
#include "model/model.h"
#include "model/rank_exchange.h"
#include "optim/optimizer.h"

namespace deltatrain {

// Rows of a micro-batch in host memory.
struct TokenBatch {
  std::span<const int32_t> ids;      // [R]
  std::span<const int32_t> labels;   // [R]; ops::kIgnoredLabel where a row doesn't count
  std::span<const int32_t> offsets;  // [S + 1] sequence starts, see ops::Sequences
};

enum class SequenceLengths : uint8_t { kEqual, kAny };

// Largest micro-batch that a step has to hold.
struct BatchShape {
  int64_t num_rows = 0;
  int64_t num_sequences = 0;  // all of one length, or so many and fewer of any
  SequenceLengths lengths = SequenceLengths::kEqual;
  int64_t loss_chunk_rows = 0;  // 0: chosen
};

// Device memory by part, in bytes.
struct MemoryPlan {
  int64_t parameters = 0;  // masters and compute copies
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t saved_activations = 0;
  int64_t scratch = 0;  // what the arena holds beyond saved activations at its fullest
  int64_t batch = 0;    // ids, labels, offsets
  int64_t arena() const { return saved_activations + scratch; }
  int64_t checkpoint_copy = 0;  // host memory of a save that goes on while training does
  // Host memory of code, libraries, threads, read-ahead and file buffers: an allowance, since it
  // hardly depends on the model (32 to 47 MiB measured for models of 1 to 5 million parameters).
  int64_t program = 0;
  // What the device holds; where device memory is host memory, the copy of a checkpoint and the
  // program lie there too.
  int64_t total(bool on_host) const {
    return parameters + gradients + optimizer + arena() + batch +
           (on_host ? checkpoint_copy + program : 0);
  }
};

// The ranks that a step is shared with. Without collectives nothing is exchanged, and the sharding
// alone counts, for a plan.
struct StepRanks {
  layers::Sharding sharding;
  ParallelConfig config;
  dist::Collectives* collectives = nullptr;  // outlives the step
};

enum class StatePart : uint8_t { kWeights, kExpAvg, kExpAvgSq };

class TrainingStep {
 public:
  enum class Purpose : uint8_t { kTrain, kEvaluate, kTrace, kGradients };

  // `arena_bytes` comes from plan(). Weights are zero until set.
  TrainingStep(const Context& context, const ModelConfig& model, const OptimizerConfig& optimizer,
               const BatchShape& shape, int64_t arena_bytes, Purpose purpose = Purpose::kTrain,
               const StepRanks& ranks = {});
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // Runs forward, backward and update on a planning context and adds up what they take.
  static MemoryPlan plan(const Context& planning_context, const ModelConfig& model,
                         const BatchShape& shape, Purpose purpose = Purpose::kTrain,
                         const StepRanks& ranks = {});

  const Model& model() const { return model_; }
  layers::ParameterStore& parameters() { return parameters_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const Context& context() const { return context_; }

  // Zeroes gradients and the loss sum.
  void begin();
  // Forward and backward of one micro-batch. grad_scale = 1 / valid tokens of the global batch.
  // kLast: sums over ranks start where gradients are complete.
  enum class Turn : uint8_t { kMore, kLast };
  void accumulate(const TokenBatch& batch, double grad_scale, Turn turn = Turn::kLast);
  // Sum of the losses since begin(), over all ranks once update() is done; waits for the device.
  double loss_sum();
  // Changes nothing where the gradient's norm or the losses since begin() are not finite.
  optim::Optimizer::Result update(double learning_rate, int64_t step);

  // Sum of the losses of a batch, over all ranks' batches, without gradients; waits for the device.
  double evaluate(const TokenBatch& batch);

  // Logits behind the first `count` of `ids`, which go through as one sequence; those after them do
  // not matter, and keep the shapes, and so the choice of product algorithms, the same from call to
  // call. At most the planned rows. Waits for the device. [N]
  std::vector<float> next_token_logits(std::span<const int32_t> ids, int64_t count);

  // Runs every product of a step and of a validation once, on made-up tokens and on this rank alone,
  // so that a device that chooses algorithms at first sight has chosen. Gradients are undefined
  // after it.
  void rehearse();

  // A part of the state, all elements of the flat buffers (f32 or f64), whatever part of it each rank
  // keeps. Collective where there are several ranks; outside a step, since gradients are overwritten.
  int64_t state_part_bytes() const;
  // `fill` writes every parameter on rank 0 into a tensor of zeros, and is called there alone.
  void write_state(StatePart part, const std::function<void(const Tensor& flat_X)>& fill);
  // The part in device memory: where it is kept, on a rank that keeps all of it, else gathered into the
  // flat gradient, where it stays until the next call or step.
  Tensor gather_state(StatePart part);
  bool keeps_whole_state() const;

  // Of everything that has to be equal on all ranks, bit for bit; waits for the device.
  uint64_t weights_checksum();

  // What `dump` looks at; purposes kTrace and kGradients.
  struct Trace {
    std::vector<double> logits;                // [R, N]
    std::vector<std::vector<double>> streams;  // [R, D] after the embedding and after each block
    double loss_sum = 0;
  };
  // With kGradients, parameter gradients are left in the store: of the loss sum times grad_scale.
  Trace trace(const TokenBatch& batch, double grad_scale);

 private:
  ops::Sequences upload(const TokenBatch& batch);
  static MemoryPlan plan_for(const Context& planning_context, const ModelConfig& model,
                             const BatchShape& shape, Purpose purpose, const StepRanks& ranks,
                             const std::vector<int32_t>& offsets);
  std::vector<double> head_logits(const Tensor& hidden_RD);
  void forward_backward(const TokenBatch& batch, double grad_scale, Trace* trace);
  Tensor owned_state(StatePart part) const;

  Context context_;
  Arena arena_;
  Model model_;
  BatchShape shape_;
  Purpose purpose_;
  int rank_;
  layers::ParameterStore parameters_;
  std::unique_ptr<RankExchange> exchange_;  // null on one rank
  std::unique_ptr<optim::Optimizer> optimizer_;
  Buffer ids_, labels_, offsets_, loss_sum_, checksum_;
};

// Elements of a device tensor (f64, f32 or bf16) as doubles on the host.
std::vector<double> to_host(const Context& context, const Tensor& tensor);

}  // namespace deltatrain
