// Training samples by their number in an order: token files, an order over them, and the labels.
//
// Orders (DataOrder):
//   sequential         sample i is the tokens [i T, i T + T] of the file; after the last whole sample
//                      the file starts again, so the order never ends
//   megatron           Megatron's GPTDataset for (files, T, number of samples, seed), served in turn:
//                      data/megatron_order.h, with several files data/blend.h
//   megatron-cyclic    the same data set, shuffled by Megatron's random sampler: data/epoch_order.h
//   torch-distributed  rows of T tokens in the order of Flash Linear Attention's trainer, as torch's
//                      DistributedSampler deals them: data/epoch_order.h
//   hf-trainer         the same rows as the Hugging Face Trainer deals them: data/epoch_order.h
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/recipe.h"     // DataOrder
#include "data/blend.h"        // SplitPart
#include "data/epoch_order.h"  // LastRows

namespace deltatrain::data {

inline constexpr int32_t kNoLabel = -100;  // a position that takes no part in the loss

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t seq_length() const = 0;     // T
  virtual int64_t num_samples() const = 0;    // after which the order ends; INT64_MAX: never
  virtual int64_t epoch_samples() const = 0;  // samples in one pass over the data
  virtual int64_t num_tokens() const = 0;     // tokens in one pass over the data

  // Fills one row: inputs, and as labels the true next tokens or kNoLabel. Appends to `starts` the
  // positions in the row at which a document starts, position 0 included, when `starts` is given.
  // Thread-safe. FormatError names a token past the vocabulary; ConfigError a sample past the end.
  virtual void read(int64_t sample, std::span<int32_t> input_ids_T, std::span<int32_t> labels_T,
                    std::vector<int32_t>* starts) const = 0;

  // Where a sample lies, for people: "sequence 12 offset 40" and so on.
  virtual std::string describe(int64_t sample) const = 0;

  // Labels of a sample that are not kNoLabel; -1: they depend on what is in it.
  virtual int64_t labels_per_sample() const = 0;
  virtual bool packs_documents() const = 0;  // true: state restarts where documents start

  // No sample has more starts of documents than this; 1 without packing. May go over all the data.
  virtual int64_t max_starts() const = 0;
};

struct SourceOptions {
  // Of .bin/.idx; PREFIX_text_document is found by PREFIX too. For the orders of GPTDataset also
  // several with or without weights (data/blend.h), for those of rows also a folder of Arrow files.
  std::string prefix;
  DataOrder order = DataOrder::kMegatron;
  int64_t seq_length = 0;
  int64_t num_samples = 0;  // how many the run will ask for; 0: one epoch
  uint64_t seed = 0;
  int64_t vocab_size = 0;    // token ids must lie below it; 0: not checked
  int32_t eod_id = -1;       // id whose next-token label is masked; -1: none
  bool packed = false;       // documents are separate sequences, and no label crosses their borders
  int32_t document_id = -1;  // in rows, the id with which documents start; needed with `packed`
  std::string split;         // "99,1,0": use only a part of the sequences of each file; empty: all
  SplitPart part = SplitPart::kTrain;
  int64_t micro_batch_size = 1;  // megatron-cyclic, torch-distributed and hf-trainer depend on both
  int64_t num_ranks = 1;
  LastRows last_rows = LastRows::kPad;
};

// The prefix of the token files that `prefix` means: PREFIX, with or without .bin or .idx behind
// it, or else PREFIX_text_document. FileError where neither exists.
std::string find_token_files(const std::string& prefix);

// Throws FileError, FormatError (files that are not a token data set), ConfigError (fewer tokens
// than one sample needs, settings that contradict each other).
std::unique_ptr<const SampleSource> open_sample_source(const SourceOptions& options);

}  // namespace deltatrain::data
