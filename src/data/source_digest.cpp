#include "data/source_digest.h"

#include <algorithm>
#include <vector>

#include "base/hash.h"

namespace deltatrain::data {

std::string source_digest(const SampleSource& source) {
  constexpr int64_t kSamples = 64;
  Xxh3 digest;
  const int64_t sizes[] = {source.seq_length(), source.num_samples(), source.epoch_samples(),
                           source.num_tokens()};
  digest.update(sizes, sizeof sizes);
  const int64_t all = std::min(source.epoch_samples(), source.num_samples());
  const int64_t count = std::min(all, kSamples);
  std::vector<int32_t> input_ids(static_cast<size_t>(source.seq_length())), labels(input_ids);
  for (int64_t i = 0; i < count; ++i) {
    // The first, the last, and those between: all / count never leaves a part out.
    const int64_t sample = count == 1 ? 0 : i * (all - 1) / (count - 1);
    source.read(sample, input_ids, labels, nullptr);
    digest.update(input_ids.data(), input_ids.size() * sizeof(int32_t));
    digest.update(labels.data(), labels.size() * sizeof(int32_t));
  }
  return hex64(digest.value());
}

}  // namespace deltatrain::data
