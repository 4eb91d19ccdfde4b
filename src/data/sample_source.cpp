#include "data/sample_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "data/megatron_order.h"
#include "formats/indexed_dataset.h"

namespace deltatrain::data {

namespace {

// What all sources over one token file share: from T + 1 tokens in a row to inputs and labels.
class IndexedSource : public SampleSource {
 public:
  explicit IndexedSource(const SourceOptions& options)
      : options_(options), dataset_(find_token_files(options.prefix)) {
    const int64_t needed = options.seq_length + 1;
    if (dataset_.num_tokens() < needed) {
      throw ConfigError(error_text(formats::bin_path(dataset_.prefix()).string(), "tokens",
                                   "at least seq_length + 1 = " + std::to_string(needed),
                                   std::to_string(dataset_.num_tokens())));
    }
  }

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t num_tokens() const override { return dataset_.num_tokens(); }
  bool masks_labels() const override { return options_.packed || options_.eod_id >= 0; }
  bool packs_documents() const override { return options_.packed; }

  void read(int64_t sample, std::span<int32_t> input_ids_T, std::span<int32_t> labels_T,
            std::vector<int32_t>* starts) const override {
    const auto T = static_cast<size_t>(options_.seq_length);
    DELTATRAIN_CHECK(input_ids_T.size() == T && labels_T.size() == T,
                     "a row holds " + std::to_string(T));
    std::vector<int32_t> tokens(T + 1);
    std::vector<int32_t> borders;  // positions 1 to T at which another document starts
    gather(sample, tokens, borders);

    std::copy_n(tokens.begin(), T, input_ids_T.begin());
    std::copy_n(tokens.begin() + 1, T, labels_T.begin());
    if (options_.eod_id >= 0) {
      for (size_t t = 0; t < T; ++t) {
        if (tokens[t] == options_.eod_id) labels_T[t] = kNoLabel;
      }
    }
    if (options_.packed) {
      for (const int32_t border : borders) labels_T[static_cast<size_t>(border) - 1] = kNoLabel;
    }
    if (starts == nullptr) return;
    starts->push_back(0);
    for (const int32_t border : borders) {
      if (static_cast<size_t>(border) < T) starts->push_back(border);
    }
  }

 protected:
  // The T + 1 tokens of a sample, and where in them further documents start, ascending and without
  // repeats.
  virtual void gather(int64_t sample, std::span<int32_t> tokens,
                      std::vector<int32_t>& borders) const = 0;

  void read_tokens(int64_t first, std::span<int32_t> tokens) const {
    dataset_.read(first, tokens, options_.vocab_size);
  }

  const SourceOptions options_;
  const formats::IndexedDataset dataset_;
};

class SequentialSource final : public IndexedSource {
 public:
  explicit SequentialSource(const SourceOptions& options)
      : IndexedSource(options), epoch_samples_((dataset_.num_tokens() - 1) / options.seq_length) {}

  int64_t epoch_samples() const override { return epoch_samples_; }

  std::string describe(int64_t sample) const override {
    const int64_t first = sample % epoch_samples_ * options_.seq_length;
    const int64_t sequence = dataset_.sequence_of_token(first);
    return "sequence " + std::to_string(sequence) + " offset " +
           std::to_string(first - dataset_.first_token(sequence));
  }

 private:
  void gather(int64_t sample, std::span<int32_t> tokens,
              std::vector<int32_t>& borders) const override {
    const int64_t first = sample % epoch_samples_ * options_.seq_length;
    read_tokens(first, tokens);
    if (!options_.packed) return;
    // The first document that starts past `first`.
    int64_t low = 0;
    int64_t high = dataset_.num_documents();
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (document_token(middle) <= first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const int64_t end = first + static_cast<int64_t>(tokens.size());
    for (; low < dataset_.num_documents(); ++low) {
      const int64_t start = document_token(low);
      if (start >= end) break;
      const auto border = static_cast<int32_t>(start - first);
      if (borders.empty() || borders.back() != border) borders.push_back(border);
    }
  }

  int64_t document_token(int64_t document) const {
    const int64_t sequence = dataset_.document_begin(document);
    return sequence == dataset_.num_sequences() ? dataset_.num_tokens()
                                                : dataset_.first_token(sequence);
  }

  const int64_t epoch_samples_;
};

class MegatronSource final : public IndexedSource {
 public:
  explicit MegatronSource(const SourceOptions& options) : IndexedSource(options) {
    std::vector<int32_t> lengths(static_cast<size_t>(dataset_.num_sequences()));
    for (size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = static_cast<int32_t>(dataset_.length(static_cast<int64_t>(i)));
    }
    order_ = megatron_order(lengths, 0, options.seq_length, options.num_samples, options.seed);
  }

  int64_t epoch_samples() const override {
    return (dataset_.num_tokens() - 1) / options_.seq_length;
  }

  std::string describe(int64_t sample) const override {
    const SampleStart start = order_.sample_starts[place(sample)];
    return "sequence " + std::to_string(order_.document_order[start.document]) + " offset " +
           std::to_string(start.offset);
  }

 private:
  // The sample's place in sample_starts.
  size_t place(int64_t sample) const {
    if (sample < 0 || sample >= order_.num_samples()) {
      throw ConfigError(dataset_.prefix() + ": sample " + std::to_string(sample) +
                        ": the order holds " + std::to_string(order_.num_samples()) + " samples");
    }
    return order_.sample_order[static_cast<size_t>(sample)];
  }

  void gather(int64_t sample, std::span<int32_t> tokens,
              std::vector<int32_t>& borders) const override {
    const size_t k = place(sample);
    const SampleStart begin = order_.sample_starts[k];
    const SampleStart end = order_.sample_starts[k + 1];
    size_t done = 0;
    for (uint32_t d = begin.document; d <= end.document; ++d) {
      const int64_t sequence = order_.document_order[d];
      const int64_t from = d == begin.document ? begin.offset : 0;
      const int64_t to = d == end.document ? end.offset + 1 : dataset_.length(sequence);
      if (to <= from) continue;
      if (from == 0 && done > 0) borders.push_back(static_cast<int32_t>(done));
      const auto count = static_cast<size_t>(to - from);
      DELTATRAIN_CHECK(done + count <= tokens.size(), "sample " + std::to_string(sample));
      read_tokens(dataset_.first_token(sequence) + from, tokens.subspan(done, count));
      done += count;
    }
    DELTATRAIN_CHECK(done == tokens.size(), "sample " + std::to_string(sample));
  }

  MegatronOrder order_;
};

}  // namespace

std::string find_token_files(const std::string& prefix) {
  std::string name = prefix;
  for (const std::string_view extension : {".bin", ".idx"}) {
    if (name.ends_with(extension)) name.resize(name.size() - extension.size());
  }
  for (const std::string& candidate : {name, name + "_text_document"}) {
    if (std::filesystem::exists(formats::idx_path(candidate))) return candidate;
  }
  throw FileError(prefix + ": expected token files " + name + ".idx or " + name +
                      "_text_document.idx, got neither",
                  ExitCode::kBadInput);
}

std::unique_ptr<const SampleSource> open_sample_source(const SourceOptions& options) {
  if (options.seq_length < 1) {
    throw ConfigError("seq_length: expected at least 1, got " + std::to_string(options.seq_length));
  }
  switch (options.order) {
    case DataOrder::kSequential:
      return std::make_unique<SequentialSource>(options);
    case DataOrder::kMegatron:
      return std::make_unique<MegatronSource>(options);
  }
  throw InternalError("data order " + std::to_string(static_cast<int>(options.order)));
}

}  // namespace deltatrain::data
