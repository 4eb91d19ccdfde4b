// A model ready to answer: weights, states and the arena for calls of bounded size.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/state.h"
#include "layers/parameters.h"
#include "model/model.h"

namespace deltatrain::decode {

class Decoder {
 public:
  // Weights are zero until set through parameters(). A call takes at most `max_rows` tokens; longer
  // prompts go through in pieces.
  Decoder(const Context& context, const Context& planning_context, const ModelConfig& config,
          int64_t num_sequences, int64_t max_length, int64_t max_rows);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  layers::ParameterStore& parameters() { return *parameters_; }
  const Model& model() const { return model_; }
  State& state() { return *state_; }
  const Context& context() const { return context_; }

  // Feeds tokens[s] to sequence s (all sequences get the same number, at least one) and returns the
  // logits after the last token of each, [S, N] as floats.
  std::vector<float> feed(std::span<const std::vector<int32_t>> tokens);
  // The same, but returns the most likely next token of each sequence, the first of equals, which
  // is chosen on the device. NumericError where a logit is NaN or the largest is infinite.
  std::vector<int32_t> feed_greedily(std::span<const std::vector<int32_t>> tokens);

  // Feeds tokens[s], one each, and then what is most likely, `count` times in all: the tokens chosen, [count][S].
  // Devices that record work do kGreedySteps of such steps, where as many are left, before the host hears of them.
  static constexpr int64_t kGreedySteps = 8;
  std::vector<std::vector<int32_t>> go_on_greedily(std::span<const int32_t> tokens, int64_t count);
  // How many steps that is at present: kGreedySteps or 1. Attention reads lengths that the host puts there before each
  // step.
  int64_t greedy_steps_at_once() const {
    return recording_ != nullptr && !state_->has_attention() ? kGreedySteps : 1;
  }

  // Bytes that a step of one token per sequence cannot do without reading: the weights that ops
  // read (of an untied embedding one row per sequence) and the states.
  int64_t bytes_per_step() const;

 private:
  // What a pass reads and writes besides parameters and state.
  struct Batch {
    ops::Sequences sequences;
    Tensor ids_R;
    Tensor logits_SN;
    Tensor chosen_S;  // may be ids_R
  };
  enum class Head : uint8_t { kNone, kLogits };

  void advance(std::span<const std::vector<int32_t>> tokens);
  void step(std::span<const int32_t> tokens);
  void put_tokens(std::span<const int32_t> tokens);
  void run_greedy_steps();
  std::vector<int32_t> read_chosen(int64_t first, int64_t count) const;
  void run_piece(std::span<const std::vector<int32_t>> tokens, size_t begin, size_t end, Head head);
  void run(const Context& context, layers::ParameterStore& parameters, const State& state,
           const Batch& batch, Head head);
  Batch batch(const std::vector<int32_t>& offsets, int64_t tokens_per_sequence,
              const Buffer& device_offsets) const;
  Batch step_batch(int64_t index) const;

  Context context_;
  Arena arena_;
  Model model_;
  int64_t max_rows_;
  std::unique_ptr<layers::ParameterStore> parameters_;
  std::unique_ptr<State> state_;
  Buffer ids_, offsets_, step_offsets_, logits_;
  Buffer
      chosen_;  // of kGreedySteps steps, [1 + kGreedySteps, S]; the row before a step's is what it is fed
  std::vector<int32_t> step_offset_values_;
  // One token per sequence: the first time as any other pass, then recorded where the device can; and kGreedySteps of
  // them in a row.
  std::unique_ptr<Recording> recording_, greedy_recording_;
  bool has_stepped_ = false;
};

}  // namespace deltatrain::decode
