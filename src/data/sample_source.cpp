#include "data/sample_source.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "data/indexed_source.h"
#include "data/row_files.h"
#include "data/row_labels.h"
#include "formats/indexed_dataset.h"

namespace deltatrain::data {

namespace {

std::string without_extension(std::string name) {
  for (const std::string_view extension : {".bin", ".idx"}) {
    if (name.ends_with(extension)) name.resize(name.size() - extension.size());
  }
  return name;
}

std::optional<std::string> token_files(const std::string& prefix) {
  const std::string name = without_extension(prefix);
  for (const std::string& candidate : {name, name + "_text_document"}) {
    if (std::filesystem::exists(formats::idx_path(candidate))) return candidate;
  }
  return std::nullopt;
}

// Samples of several sources in a fixed order.
class BlendedSource final : public SampleSource {
 public:
  BlendedSource(std::vector<std::unique_ptr<const SampleSource>> sources, BlendOrder order)
      : sources_(std::move(sources)), order_(std::move(order)) {
    std::vector<int64_t> used(sources_.size(), 0);
    for (const int16_t source : order_.source) ++used[static_cast<size_t>(source)];
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (used[i] <= sources_[i]->num_samples()) continue;
      throw ConfigError(error_text("data", "blend of several files",
                                   "at most " + std::to_string(sources_[i]->num_samples()) +
                                       " samples from file " + std::to_string(i + 1),
                                   std::to_string(used[i])));
    }
  }

  int64_t seq_length() const override { return sources_.front()->seq_length(); }
  int64_t num_samples() const override { return static_cast<int64_t>(order_.source.size()); }
  int64_t epoch_samples() const override { return sum(&SampleSource::epoch_samples); }
  int64_t num_tokens() const override { return sum(&SampleSource::num_tokens); }
  int64_t labels_per_sample() const override { return sources_.front()->labels_per_sample(); }
  bool packs_documents() const override { return sources_.front()->packs_documents(); }
  int64_t max_starts() const override {
    int64_t most = 1;
    for (const auto& source : sources_) most = std::max(most, source->max_starts());
    return most;
  }

  void read(int64_t sample, std::span<int32_t> input_ids_T, std::span<int32_t> labels_T,
            std::vector<int32_t>* starts) const override {
    const auto [source, inner] = place(sample);
    sources_[source]->read(inner, input_ids_T, labels_T, starts);
  }

  std::string describe(int64_t sample) const override {
    const auto [source, inner] = place(sample);
    return "file " + std::to_string(source + 1) + " " + sources_[source]->describe(inner);
  }

 private:
  std::pair<size_t, int64_t> place(int64_t sample) const {
    if (sample < 0 || sample >= num_samples()) {
      throw ConfigError("data: sample " + std::to_string(sample) + ": the order holds " +
                        std::to_string(num_samples()) + " samples");
    }
    const auto i = static_cast<size_t>(sample);
    return {static_cast<size_t>(order_.source[i]), order_.sample[i]};
  }

  int64_t sum(int64_t (SampleSource::*count)() const) const {
    int64_t total = 0;
    for (const auto& source : sources_) total += (source.get()->*count)();
    return total;
  }

  const std::vector<std::unique_ptr<const SampleSource>> sources_;
  const BlendOrder order_;
};

// Whole rows: the last label of each is unknown.
class RowSource final : public SampleSource {
 public:
  RowSource(std::unique_ptr<const RowFiles> rows, const SourceOptions& options)
      : rows_(std::move(rows)), options_(options) {
    if (rows_->row_length() != options.seq_length) {
      throw ConfigError(error_text(options.prefix, "rows",
                                   "seq_length = " + std::to_string(options.seq_length) + " ids",
                                   std::to_string(rows_->row_length())));
    }
    if (options.packed && options.document_id < 0) {
      throw ConfigError(error_text("data", "packed documents in rows",
                                   "a tokenizer with a BOS, which starts documents", "none"));
    }
  }

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t num_samples() const override { return rows_->num_rows(); }
  int64_t epoch_samples() const override { return rows_->num_rows(); }
  int64_t num_tokens() const override { return rows_->num_rows() * options_.seq_length; }
  bool packs_documents() const override { return options_.packed; }
  int64_t max_starts() const override {
    if (!options_.packed) return 1;
    int64_t most = 1;
    std::vector<int32_t> ids(static_cast<size_t>(options_.seq_length));
    for (int64_t row = 0; row < rows_->num_rows(); ++row) {
      rows_->read(row, ids, options_.vocab_size);
      most =
          std::max<int64_t>(most, 1 + std::count(ids.begin() + 1, ids.end(), options_.document_id));
    }
    return most;
  }
  int64_t labels_per_sample() const override {
    return options_.packed || options_.eod_id >= 0 ? -1 : options_.seq_length - 1;
  }
  std::string describe(int64_t sample) const override { return rows_->describe(sample); }

  void read(int64_t sample, std::span<int32_t> input_ids_T, std::span<int32_t> labels_T,
            std::vector<int32_t>* starts) const override {
    rows_->read(sample, input_ids_T, options_.vocab_size);
    std::copy(input_ids_T.begin() + 1, input_ids_T.end(), labels_T.begin());
    labels_T.back() = kNoLabel;
    std::vector<int32_t> borders;
    for (size_t t = 1; options_.packed && t < input_ids_T.size(); ++t) {
      if (input_ids_T[t] == options_.document_id) borders.push_back(static_cast<int32_t>(t));
    }
    mask_labels(options_, input_ids_T, borders, labels_T);
    if (starts != nullptr) append_starts(borders, options_.seq_length, *starts);
  }

 private:
  const std::unique_ptr<const RowFiles> rows_;
  const SourceOptions options_;
};

// A source in an order that starts anew each epoch and never ends.
class ReorderedSource final : public SampleSource {
 public:
  ReorderedSource(std::unique_ptr<const SampleSource> source,
                  std::unique_ptr<const EpochOrder> order)
      : source_(std::move(source)), order_(std::move(order)) {}

  int64_t seq_length() const override { return source_->seq_length(); }
  int64_t num_samples() const override { return std::numeric_limits<int64_t>::max(); }
  int64_t epoch_samples() const override { return order_->epoch_samples(); }
  int64_t num_tokens() const override { return source_->num_tokens(); }
  int64_t labels_per_sample() const override { return source_->labels_per_sample(); }
  bool packs_documents() const override { return source_->packs_documents(); }
  int64_t max_starts() const override { return source_->max_starts(); }
  std::string describe(int64_t sample) const override {
    return source_->describe(order_->row(sample));
  }

  void read(int64_t sample, std::span<int32_t> input_ids_T, std::span<int32_t> labels_T,
            std::vector<int32_t>* starts) const override {
    source_->read(order_->row(sample), input_ids_T, labels_T, starts);
  }

 private:
  const std::unique_ptr<const SampleSource> source_;
  const std::unique_ptr<const EpochOrder> order_;
};

// GPTDataset, or a blend of them.
std::unique_ptr<const SampleSource> open_gpt_sources(const SourceOptions& options) {
  SourceOptions one = options;
  if (token_files(options.prefix).has_value())
    return open_gpt_source(one);  // its name may have spaces
  const BlendPath path = parse_blend_path(options.prefix);
  // A single file with a weight is a blend only where it is split: so it is in Megatron.
  if (path.prefixes.size() == 1 && (path.weights.empty() || options.split.empty())) {
    one.prefix = path.prefixes.front();
    return open_gpt_source(one);
  }
  std::vector<std::unique_ptr<const SampleSource>> sources;
  const auto open = [&](size_t i, int64_t num_samples) {
    one.prefix = path.prefixes[i];
    one.num_samples = num_samples;
    sources.push_back(open_gpt_source(one));
  };
  if (path.weights.empty()) {
    // In proportion to their sizes, each at most once.
    std::vector<int64_t> sizes;
    int64_t total = 0;
    for (size_t i = 0; i < path.prefixes.size(); ++i) {
      open(i, 0);
      sizes.push_back(sources.back()->num_samples());
      total += sizes.back();
    }
    if (options.num_samples == 0)
      return std::make_unique<BlendedSource>(std::move(sources), exhaustive_blend_order(sizes));
    const std::vector<double> weights = normalized({sizes.begin(), sizes.end()});
    return std::make_unique<BlendedSource>(
        std::move(sources), blend_order(weights, std::min(options.num_samples, total)));
  }
  if (options.num_samples == 0) {
    throw ConfigError(error_text("data", "blend with weights",
                                 "a number of samples, on which it depends", "none"));
  }
  const std::vector<double> weights = normalized(path.weights);
  const BlendSizes sizes = blend_sizes(weights, options.num_samples);
  int64_t total = 0;
  for (size_t i = 0; i < path.prefixes.size(); ++i) {
    open(i, sizes.made[i]);
    total += sizes.used[i];
  }
  // Megatron divides by the sum once more, which can change the last bit.
  return std::make_unique<BlendedSource>(std::move(sources),
                                         blend_order(normalized(weights), total));
}

std::unique_ptr<const SampleSource> open_row_source(const SourceOptions& options) {
  if (!options.split.empty()) {
    throw ConfigError(
        error_text("data.split", "", "none with an order of rows", "'" + options.split + "'"));
  }
  return std::make_unique<RowSource>(open_row_files(options.prefix), options);
}

EpochShape shape_of(const SampleSource& source, const SourceOptions& options) {
  return {source.num_samples(), options.micro_batch_size, options.num_ranks};
}

}  // namespace

std::string find_token_files(const std::string& prefix) {
  const std::optional<std::string> found = token_files(prefix);
  if (found.has_value()) return *found;
  const std::string name = without_extension(prefix);
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
      return open_sequential_source(options);
    case DataOrder::kMegatron:
      return open_gpt_sources(options);
    case DataOrder::kMegatronCyclic: {
      auto source = open_gpt_sources(options);
      auto order = megatron_cyclic_order(shape_of(*source, options));
      return std::make_unique<ReorderedSource>(std::move(source), std::move(order));
    }
    case DataOrder::kTorchDistributed: {
      auto source = open_row_source(options);
      auto order =
          torch_distributed_order(shape_of(*source, options), options.seed, options.last_rows);
      return std::make_unique<ReorderedSource>(std::move(source), std::move(order));
    }
    case DataOrder::kHfTrainer: {
      auto source = open_row_source(options);
      auto order = hf_trainer_order(shape_of(*source, options), options.seed);
      return std::make_unique<ReorderedSource>(std::move(source), std::move(order));
    }
  }
  throw InternalError("data order " + std::to_string(static_cast<int>(options.order)));
}

}  // namespace deltatrain::data
