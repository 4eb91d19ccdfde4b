// States after beginnings of prompts, for prompts that begin alike.
//
// An entry holds what a sequence needs to go on after `length` tokens as if it had been fed them: its
// state, the hidden state of the last token and, where a request asked for them, the
// log-probabilities of the tokens. The least recently used entry gives way. For one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/tile_decoder.h"
#include "serve/logprobs.h"

namespace deltatrain::serve {

// Digest of the beginning of a prompt; entries compare the tokens themselves.
uint64_t prefix_digest(std::span<const int32_t> tokens);

class PrefixCache {
 public:
  // `num_entries` may be 0: nothing is ever found.
  PrefixCache(const decode::TileDecoder& decoder, int64_t num_entries);

  struct Entry {
    int64_t slot = 0;
    int64_t num_top = -1;                 // of logprobs; -1: there are none
    std::vector<TokenLogprobs> logprobs;  // of tokens 1, ..., length - 1
  };

  int64_t capacity() const { return static_cast<int64_t>(slots_.size()); }
  int64_t size() const { return static_cast<int64_t>(by_digest_.size()); }

  // The entry for exactly these tokens, with at least `num_top` logprobs a token (-1: none needed).
  // Valid until the next insert().
  const Entry* find(std::span<const int32_t> tokens, int64_t num_top);
  // Copies sequence `from` of `state` and the hidden row. An entry of the same tokens is replaced
  // where it has fewer logprobs.
  void insert(std::span<const int32_t> tokens, const decode::State& state, int64_t from,
              const Tensor& hidden_D, int64_t num_top, std::vector<TokenLogprobs> logprobs);

  const decode::State& states() const { return *states_; }
  Tensor hidden_row(const Entry& entry) const;

 private:
  struct Slot {
    Entry entry;
    std::vector<int32_t> tokens;
    uint64_t digest = 0;
    uint64_t last_use = 0;  // 0: empty
  };

  Slot* slot_of(std::span<const int32_t> tokens);

  Context context_;
  std::unique_ptr<decode::State> states_;
  Buffer hidden_;
  DType dtype_;
  int64_t width_;
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, size_t> by_digest_;
  uint64_t clock_ = 0;
};

}  // namespace deltatrain::serve
