// Which labels of a row take no part in the loss, and where its sequences start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/sample_source.h"

namespace deltatrain::data {

// `borders` are the positions at which a further document starts, up to and including T. With
// `packed` the label before a border goes, with eod_id those of inputs that are it.
inline void mask_labels(const SourceOptions& options, std::span<const int32_t> input_ids_T,
                        std::span<const int32_t> borders, std::span<int32_t> labels_T) {
  if (options.eod_id >= 0) {
    for (size_t t = 0; t < input_ids_T.size(); ++t) {
      if (input_ids_T[t] == options.eod_id) labels_T[t] = kNoLabel;
    }
  }
  if (options.packed) {
    for (const int32_t border : borders) labels_T[static_cast<size_t>(border) - 1] = kNoLabel;
  }
}

inline void append_starts(std::span<const int32_t> borders, int64_t seq_length,
                          std::vector<int32_t>& starts) {
  starts.push_back(0);
  for (const int32_t border : borders) {
    if (border < seq_length) starts.push_back(border);
  }
}

}  // namespace deltatrain::data
