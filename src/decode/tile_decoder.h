// Passes of a fixed number of rows over sequences of any lengths, for results that do not depend on
// what else is computed at the same time.
//
// Every pass has `tile_rows` rows and every call of the head `logit_rows`, the rest filled up: all
// products then have one shape, and a row of a product does not depend on the other rows. What a
// sequence gives depends on its own tokens and on where they were cut into pieces, on nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/state.h"
#include "layers/parameters.h"
#include "model/model.h"

namespace deltatrain::decode {

class TileDecoder {
 public:
  struct Sizes {
    int64_t num_slots = 1;  // sequences at a time
    int64_t max_length = 1;
    int64_t tile_rows = 256;
    int64_t logit_rows = 64;
  };

  // Weights are zero until set through parameters().
  TileDecoder(const Context& context, const Context& planning_context, const ModelConfig& config,
              const Sizes& sizes);
  ~TileDecoder();
  TileDecoder(const TileDecoder&) = delete;
  TileDecoder& operator=(const TileDecoder&) = delete;

  const Context& context() const { return context_; }
  const Sizes& sizes() const { return sizes_; }
  layers::ParameterStore& parameters() { return *parameters_; }
  const Model& model() const { return model_; }
  // num_slots sequences, and one more that fills passes up.
  State& state() { return *state_; }
  // A state for `num_sequences` that sequences can be copied to and from.
  std::unique_ptr<State> make_state(int64_t num_sequences) const;

  // Feeds pieces[i], at least one token, to sequence first_slot + i; tile_rows tokens at most in
  // all. Where fewer, the sequence after the last is overwritten.
  void feed(int64_t first_slot, std::span<const std::span<const int32_t>> pieces);
  // Keeps `count` normed hidden states of the last feed from row `row` on as rows `to`, ... of the
  // next logits().
  void keep_rows(int64_t row, int64_t count, int64_t to);

  // Logits of all kept rows, [logit_rows, N] in the activation dtype, and log sum exp of each, f32
  // or f64 [logit_rows]. Rows not kept since are of earlier ones. In device memory, until the next
  // call.
  struct Logits {
    Tensor logits_RN;
    Tensor lse_R;
  };
  Logits logits();

 private:
  void run(const Context& context, const layers::ParameterStore& parameters, const State& state,
           int64_t first_slot, const std::vector<int32_t>& offsets);
  void run_head(const Context& context, const layers::ParameterStore& parameters);

  Context context_;
  Sizes sizes_;
  Arena arena_;
  Model model_;
  std::unique_ptr<layers::ParameterStore> parameters_;
  std::unique_ptr<State> state_;
  Buffer ids_, offsets_, hidden_, kept_, logits_, labels_, loss_, lse_;
};

}  // namespace deltatrain::decode
