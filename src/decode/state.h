// What sequences remember between calls: recurrent states, convolution histories and attention
// caches, in slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/mixer.h"
#include "model/model.h"

namespace deltatrain::decode {

// Zeroed state for `num_sequences` sequences. Only attention layers depend on max_length: the
// states of delta-rule layers have one size whatever the length.
class State {
 public:
  State(const Context& context, const Model& model, int64_t num_sequences, int64_t max_length);

  // Forgets everything: all sequences start anew.
  void reset(const Context& context);

  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t max_length() const { return max_length_; }
  bool has_attention() const { return has_attention_; }
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  int64_t num_bytes() const { return static_cast<int64_t>(storage_.num_bytes()); }
  // Of them, what one more token has to read: of caches the part that is filled.
  int64_t num_bytes_in_use() const;

  // Forgets sequence `sequence` alone.
  void reset_sequence(const Context& context, int64_t sequence);
  // Puts a copy of sequence `from` of `source` in place of sequence `to`: both go on by themselves
  // from here. The states have one model and one max_length.
  void copy_sequence(const Context& context, const State& source, int64_t from, int64_t to);
  // The same for many at once: sequence from[i] of `source` to to[i], or none (an empty one) where from[i] is -1.
  // At most num_sequences(), to[i] differ. `source` is another state.
  void copy_sequences(const Context& context, const State& source, std::span<const int32_t> from,
                      std::span<const int32_t> to);

  // For the pass that reads and updates the state; `advance` after it, with the tokens each
  // sequence got.
  const std::vector<layers::LayerState>& layers() const { return layers_; }
  Tensor device_lengths() const { return device_lengths_; }
  // ConfigError when a sequence of an attention model would outgrow max_length.
  void check_room(int64_t sequence, int64_t num_tokens) const;
  void advance(const Context& context, std::span<const int32_t> num_tokens);
  // The same for a pass over sequences [first, first + num_tokens.size()) alone.
  std::vector<layers::LayerState> layers(int64_t first, int64_t count) const;
  void advance(const Context& context, int64_t first, std::span<const int32_t> num_tokens);

 private:
  void put_lengths(const Context& context, int64_t first, int64_t count);

  Buffer storage_;
  std::vector<layers::LayerState> layers_;
  std::vector<int32_t> lengths_;
  Tensor device_lengths_;
  Tensor moves_;  // copy_sequences: sources, targets, lengths
  int64_t max_length_ = 0;
  bool has_attention_ = false;
};

}  // namespace deltatrain::decode
