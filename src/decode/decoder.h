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

 private:
  void run(const Context& context, layers::ParameterStore& parameters, State& state,
           std::span<const std::vector<int32_t>> tokens, size_t begin, size_t end,
           std::vector<float>* logits);

  Context context_;
  Arena arena_;
  Model model_;
  int64_t max_rows_;
  std::unique_ptr<layers::ParameterStore> parameters_;
  std::unique_ptr<State> state_;
  Buffer ids_, offsets_;
};

}  // namespace deltatrain::decode
