// Passes of a fixed number of rows over sequences of any lengths, and steps of one token a sequence,
// for results that do not depend on what else is computed at the same time.
//
// Every pass has `tile_rows` rows (or `short_tile_rows`, as the caller says) and every call of the
// head `logit_rows`, the rest filled up: all products then have one shape, and a row of a product
// does not depend on the other rows. A step has step_rows() rows, or fewer where the backend's
// products of a few rows give each row the same bits whatever their number. What a sequence gives
// depends on its own tokens, on where they were cut into pieces and on which of the passes took
// them, on nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "decode/sampler.h"
#include "decode/state.h"
#include "layers/parameters.h"
#include "model/model.h"
#include "ops/token_choices.h"
#include "ops/token_scores.h"

namespace deltatrain::decode {

class TileDecoder {
 public:
  struct Sizes {
    int64_t num_slots = 1;  // sequences at a time
    int64_t max_length = 1;
    int64_t tile_rows = 256;
    int64_t logit_rows = 64;
    int64_t short_tile_rows = 0;  // rows of the shorter passes, below tile_rows; 0: there are none
    int64_t num_step_slots = 0;   // sequences that go on token by token; 0: no steps
  };
  enum class Tile : uint8_t { kWhole, kShort };

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

  // Feeds pieces[i], at least one token, to sequence first_slot + i; as many tokens as the tile has
  // rows at most in all. Where fewer, the sequence after the last is overwritten.
  void feed(int64_t first_slot, std::span<const std::span<const int32_t>> pieces,
            Tile tile = Tile::kWhole);
  // Keeps `count` normed hidden states of the last feed from row `row` on as rows `to`, ... of the
  // next choices() or scores().
  void keep_rows(int64_t row, int64_t count, int64_t to);
  // The same for rows in any order: rows[i] as row to + i.
  void keep_rows(std::span<const int32_t> rows, int64_t to);
  // One such row of the last feed, [D] in the activation dtype, in device memory until the next feed;
  // and one that was copied away, as row `to` of the next choices().
  Tensor hidden_row(int64_t row) const;
  void keep_row(const Tensor& hidden_D, int64_t to);

  // What is asked of a row of logits: a token that is told of, or one that is drawn.
  struct Wish {
    int32_t given = -1;
    Sampling sampling;
    double uniform = 0;   // decides the draw: uniform_of(sampling, position)
    int64_t num_top = 0;  // of the most likely tokens, at most kMaxTop
  };
  struct Choice {
    int32_t id = -1;  // -1: a logit is NaN or the largest infinite
    double logit = 0, lse = 0;
    std::vector<std::pair<int32_t, double>> top;  // ids and logits, most likely first
  };
  static constexpr int64_t kMaxTop = 20;
  // Of the first kept rows, as ops::token_choices says: what comes back from the device is this, not logits.
  std::vector<Choice> choices(std::span<const Wish> wishes);

  // num_step_slots sequences or a few more, which belong to step() alone.
  State& step_state() { return *step_state_; }
  // Sequences that one step takes at most.
  int64_t step_rows() const { return step_rows_; }
  // Logits after a step, [S, N], and the most likely token of each row, i32 [S]: -1 where a logit is
  // NaN or the largest infinite. In device memory, until the next step.
  struct StepLogits {
    Tensor logits_SN;
    Tensor chosen_S;
  };
  // Feeds ids[i] to step sequence first_slot + i, where first_slot is a multiple of step_rows().
  // Sequences from first_slot + ids.size() up to the next multiple may be overwritten.
  StepLogits step(int64_t first_slot, std::span<const int32_t> ids);
  // Of the first rows of the last step.
  std::vector<Choice> step_choices(std::span<const Wish> wishes);

  // Of the token ids[i] after kept row rows[i]: its log-probability, and whether it is the most
  // likely one there, as ops::token_scores says.
  struct Score {
    float log_probability = 0;
    bool is_greedy = false;
  };
  std::vector<Score> scores(std::span<const int32_t> rows, std::span<const int32_t> ids,
                            ops::TokenScores::Rounding rounding);

 private:
  // The step from one slot on with one number of rows, kept by devices that can.
  struct Step {
    bool has_run = false;
    std::unique_ptr<Recording> recording;
  };

  void run(const Context& context, const layers::ParameterStore& parameters, const State& state,
           int64_t first_slot, const std::vector<int32_t>& offsets);
  void run_head(const Context& context, const layers::ParameterStore& parameters);
  int64_t padded_step(int64_t num_rows) const;
  void run_step(const Context& context, const layers::ParameterStore& parameters,
                const State& state, int64_t first_slot, int64_t num_rows);
  void run_choices(const Context& context, const Tensor& logits_RN);
  std::vector<Choice> choices_of(const Tensor& logits_RN, std::span<const Wish> wishes);
  void run_scores(const Context& context, const layers::ParameterStore& parameters, int64_t count,
                  ops::TokenScores::Rounding rounding);

  Context context_;
  Sizes sizes_;
  Arena arena_;
  Model model_;
  std::unique_ptr<layers::ParameterStore> parameters_;
  std::unique_ptr<State> state_, step_state_;
  Buffer ids_, offsets_, hidden_, kept_, logits_;
  int64_t step_rows_ = 0;
  Buffer step_ids_, step_offsets_, step_logits_, step_chosen_;
  Buffer wishes_, choices_;  // arguments and results of token_choices, end to end
  std::map<std::pair<int64_t, int64_t>, Step> steps_;  // by first slot and number of rows
  Buffer moves_, targets_, scores_, greedy_;  // keep_rows and scores: rows and ids; results
};

}  // namespace deltatrain::decode
