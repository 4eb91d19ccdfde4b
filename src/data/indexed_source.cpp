#include "data/indexed_source.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "data/megatron_order.h"
#include "data/row_labels.h"
#include "formats/indexed_dataset.h"

namespace deltatrain::data {

namespace {

// What both sources share: a range of a file's sequences, and the labels of T + 1 tokens in a row.
class IndexedSource : public SampleSource {
 public:
  explicit IndexedSource(const SourceOptions& options)
      : options_(options), dataset_(find_token_files(options.prefix)) {
    first_sequence_ = 0;
    last_sequence_ = dataset_.num_sequences();
    if (!options.split.empty()) {
      const auto borders = parse_split(options.split)[static_cast<size_t>(options.part)];
      if (!borders.has_value()) {
        throw ConfigError(error_text("data.split", "", "a share above 0 for the part that is used",
                                     "'" + options.split + "'"));
      }
      std::tie(first_sequence_, last_sequence_) =
          split_sequences(*borders, dataset_.num_sequences());
    }
    first_token_ = token_of(first_sequence_);
    num_tokens_ = token_of(last_sequence_) - first_token_;
    const int64_t needed = options.seq_length + 1;
    if (num_tokens_ < needed) {
      throw ConfigError(error_text(formats::bin_path(dataset_.prefix()).string(),
                                   options.split.empty() ? "tokens" : "tokens in this part",
                                   "at least seq_length + 1 = " + std::to_string(needed),
                                   std::to_string(num_tokens_)));
    }
  }

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t epoch_samples() const override { return (num_tokens_ - 1) / options_.seq_length; }
  bool packs_documents() const override { return options_.packed; }
  int64_t labels_per_sample() const override {
    return options_.packed || options_.eod_id >= 0 ? -1 : options_.seq_length;
  }

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
    mask_labels(options_, input_ids_T, borders, labels_T);
    if (starts != nullptr) append_starts(borders, options_.seq_length, *starts);
  }

 protected:
  // The T + 1 tokens of a sample, and where in them further documents start, ascending and without
  // repeats.
  virtual void gather(int64_t sample, std::span<int32_t> tokens,
                      std::vector<int32_t>& borders) const = 0;

  void read_tokens(int64_t first, std::span<int32_t> tokens) const {
    dataset_.read(first, tokens, options_.vocab_size);
  }

  int64_t token_of(int64_t sequence) const {
    return sequence == dataset_.num_sequences() ? dataset_.num_tokens()
                                                : dataset_.first_token(sequence);
  }

  const SourceOptions options_;
  const formats::IndexedDataset dataset_;
  int64_t first_sequence_ = 0;
  int64_t last_sequence_ = 0;
  int64_t first_token_ = 0;
  int64_t num_tokens_ = 0;
};

class SequentialSource final : public IndexedSource {
 public:
  using IndexedSource::IndexedSource;

  int64_t num_samples() const override { return std::numeric_limits<int64_t>::max(); }

  int64_t max_starts() const override {
    if (!options_.packed) return 1;
    int64_t most = 1;
    int64_t begin = 0;  // documents that start at or before the sample
    int64_t end = 0;    // documents that start before the next one
    const auto advance = [&](int64_t& document, int64_t token) {
      while (document < dataset_.num_documents() &&
             token_of(dataset_.document_begin(document)) < token)
        ++document;
    };
    for (int64_t sample = 0; sample < epoch_samples(); ++sample) {
      advance(begin, first_of(sample) + 1);
      advance(end, first_of(sample) + options_.seq_length);
      most = std::max(most, 1 + end - begin);
    }
    return std::min(most, options_.seq_length);
  }

  std::string describe(int64_t sample) const override {
    const int64_t first = first_of(sample);
    const int64_t sequence = dataset_.sequence_of_token(first);
    return "sequence " + std::to_string(sequence) + " offset " +
           std::to_string(first - dataset_.first_token(sequence));
  }

 private:
  int64_t first_of(int64_t sample) const {
    return first_token_ + sample % epoch_samples() * options_.seq_length;
  }

  void gather(int64_t sample, std::span<int32_t> tokens,
              std::vector<int32_t>& borders) const override {
    const int64_t first = first_of(sample);
    read_tokens(first, tokens);
    if (!options_.packed) return;
    // The first document that starts past `first`.
    int64_t low = 0;
    int64_t high = dataset_.num_documents();
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (token_of(dataset_.document_begin(middle)) <= first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const int64_t end = first + static_cast<int64_t>(tokens.size());
    for (; low < dataset_.num_documents(); ++low) {
      const int64_t start = token_of(dataset_.document_begin(low));
      if (start >= end) break;
      const auto border = static_cast<int32_t>(start - first);
      if (borders.empty() || borders.back() != border) borders.push_back(border);
    }
  }
};

class GptSource final : public IndexedSource {
 public:
  explicit GptSource(const SourceOptions& options) : IndexedSource(options) {
    std::vector<int32_t> lengths(static_cast<size_t>(last_sequence_ - first_sequence_));
    for (size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = static_cast<int32_t>(dataset_.length(first_sequence_ + static_cast<int64_t>(i)));
    }
    order_ = megatron_order(lengths, narrow<int32_t>(first_sequence_), options.seq_length,
                            options.num_samples, options.seed);
  }

  int64_t num_samples() const override { return order_.num_samples(); }

  int64_t max_starts() const override {
    if (!options_.packed) return 1;
    int64_t most = 1;
    for (size_t k = 0; k + 1 < order_.sample_starts.size(); ++k) {
      most = std::max<int64_t>(most, int64_t{1} + order_.sample_starts[k + 1].document -
                                         order_.sample_starts[k].document);
    }
    return std::min(most, options_.seq_length);
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

std::unique_ptr<const SampleSource> open_sequential_source(const SourceOptions& options) {
  return std::make_unique<SequentialSource>(options);
}

std::unique_ptr<const SampleSource> open_gpt_source(const SourceOptions& options) {
  return std::make_unique<GptSource>(options);
}

}  // namespace deltatrain::data
