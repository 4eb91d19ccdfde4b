#include "data/megatron_order.h"

#include <limits>
#include <numeric>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "data/reference_random.h"

namespace deltatrain::data {

namespace {

constexpr int64_t kMaxEntries = 0xfffffffeLL;

// Number of whole samples in this many tokens; the last token is only a label.
int64_t whole_samples(int64_t tokens, int64_t seq_length) { return (tokens - 1) / seq_length; }

template <class T>
void append_range(std::vector<T>& values, int64_t begin, int64_t end) {
  const size_t before = values.size();
  values.resize(before + static_cast<size_t>(end - begin));
  std::iota(values.begin() + static_cast<std::ptrdiff_t>(before), values.end(),
            static_cast<T>(begin));
}

std::vector<SampleStart> find_sample_starts(const MegatronOrder& order,
                                            std::span<const int32_t> lengths,
                                            int32_t first_sequence, int64_t seq_length,
                                            int64_t num_samples) {
  const auto length = [&](size_t d) {
    return static_cast<int64_t>(
        lengths[static_cast<size_t>(order.document_order[d] - first_sequence)]);
  };
  std::vector<SampleStart> starts(static_cast<size_t>(num_samples) + 1);
  size_t d = 0;
  int64_t offset = 0;
  for (size_t k = 1; k < starts.size(); ++k) {
    int64_t remaining = seq_length + 1;
    while (true) {
      const int64_t left = length(d) - offset;
      remaining -= left;
      if (remaining <= 0) {
        offset += remaining + left - 1;
        break;
      }
      if (d + 1 == order.document_order.size()) {
        offset = length(d) - 1;
        break;
      }
      ++d;
      offset = 0;
    }
    starts[k] = {static_cast<uint32_t>(d), static_cast<int32_t>(offset)};
  }
  return starts;
}

}  // namespace

MegatronOrder megatron_order(std::span<const int32_t> lengths, int32_t first_sequence,
                             int64_t seq_length, int64_t num_samples, uint64_t seed) {
  DELTATRAIN_CHECK(seq_length > 0 && num_samples >= 0, "seq_length " + std::to_string(seq_length));
  if (seed > 0xffffffffU) {
    throw ConfigError("data order megatron: seed: expected one below 2^32, got " +
                      std::to_string(seed));
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (tokens < seq_length + 1) {
    throw ConfigError("data order megatron: expected at least seq_length + 1 = " +
                      std::to_string(seq_length + 1) + " tokens, got " + std::to_string(tokens));
  }

  MegatronOrder order;
  const int64_t wanted_tokens = num_samples == 0 ? 0 : num_samples * seq_length + 1;
  order.num_epochs = wanted_tokens <= tokens ? 1 : divide_up(wanted_tokens, tokens);
  const int64_t earlier_samples = whole_samples((order.num_epochs - 1) * tokens, seq_length);
  if (order.num_epochs > 1) {
    const int64_t last_epoch_samples = num_samples - earlier_samples;
    const int64_t epoch_samples = whole_samples(tokens, seq_length);
    order.separate_last_epoch =
        last_epoch_samples < static_cast<int64_t>(0.80 * static_cast<double>(epoch_samples));
  }

  const int64_t num_sequences = static_cast<int64_t>(lengths.size());
  const int64_t total_samples = whole_samples(order.num_epochs * tokens, seq_length);
  if (num_sequences > kMaxEntries / order.num_epochs || total_samples > kMaxEntries) {
    throw UnsupportedError(
        "data order megatron: expected at most 4294967294 samples and shuffled sequences, got " +
        std::to_string(total_samples) + " samples from " + std::to_string(order.num_epochs) +
        " epochs of " + std::to_string(num_sequences) + " sequences");
  }

  NumpyRandomState random(static_cast<uint32_t>(seed));
  const int64_t together = order.separate_last_epoch ? order.num_epochs - 1 : order.num_epochs;
  order.document_order.reserve(static_cast<size_t>(num_sequences * order.num_epochs));
  for (int64_t epoch = 0; epoch < order.num_epochs; ++epoch) {
    append_range(order.document_order, first_sequence, first_sequence + num_sequences);
  }
  const std::span documents(order.document_order);
  const auto boundary = static_cast<size_t>(num_sequences * together);
  random.shuffle(documents.first(boundary));
  if (order.separate_last_epoch) random.shuffle(documents.subspan(boundary));

  order.sample_starts =
      find_sample_starts(order, lengths, first_sequence, seq_length, total_samples);

  append_range(order.sample_order, 0, total_samples);
  const std::span samples(order.sample_order);
  if (order.separate_last_epoch) {
    random.shuffle(samples.first(static_cast<size_t>(earlier_samples)));
    random.shuffle(samples.subspan(static_cast<size_t>(earlier_samples)));
  } else {
    random.shuffle(samples);
  }
  return order;
}

}  // namespace deltatrain::data
