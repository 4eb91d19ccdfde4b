// The sample order of Megatron-LM's GPTDataset, bit for bit.
//
// The sequences of a token file are repeated for as many epochs as the samples asked for need,
// shuffled, and cut into samples of T + 1 tokens that overlap by one; then the samples are
// shuffled. Where the last epoch is only partly used, it is shuffled on its own, so that its
// samples come last.
//
//   document_order   sequence numbers, epochs * sequences of them
//   sample_starts    num_samples + 1 positions (index into document_order, offset in that sequence);
//                    sample k runs from entry k to entry k + 1, both tokens included
//   sample_order     the k that is served as the i-th
//
// Everything follows from (lengths, T, samples asked for, seed); nothing is cached on disk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deltatrain::data {

struct SampleStart {
  uint32_t document = 0;  // index into document_order
  int32_t offset = 0;     // tokens into that sequence

  bool operator==(const SampleStart&) const = default;
};

struct MegatronOrder {
  int64_t num_epochs = 0;
  bool separate_last_epoch = false;
  std::vector<int32_t> document_order;
  std::vector<SampleStart> sample_starts;
  std::vector<uint32_t> sample_order;

  int64_t num_samples() const { return static_cast<int64_t>(sample_order.size()); }
};

// `lengths` are the tokens of sequences first_sequence, first_sequence + 1, ...; num_samples 0 asks
// for one epoch. Throws ConfigError when there are fewer than T + 1 tokens, or a seed of 2^32 or
// more; UnsupportedError past 2^32 - 2 samples or shuffled sequences.
MegatronOrder megatron_order(std::span<const int32_t> lengths, int32_t first_sequence,
                             int64_t seq_length, int64_t num_samples, uint64_t seed);

}  // namespace deltatrain::data
