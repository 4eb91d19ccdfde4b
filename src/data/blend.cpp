#include "data/blend.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <sstream>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::data {

namespace {

std::optional<double> as_number(const std::string& word) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (end == word.c_str() || *end != '\0') return std::nullopt;
  return value;
}

// numpy.sum: eight running sums for blocks of up to 128, halves beyond.
double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) {
    double sum = -0.0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double r[8];
  for (size_t i = 0; i < 8; ++i) r[i] = values[i];
  size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) r[j] += values[i + j];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

// The source with the largest weight * max(k, 1) - count among those that `usable` says.
template <class Usable>
size_t furthest_behind(std::span<const double> weights, const std::vector<int64_t>& counts,
                       size_t k, Usable usable) {
  const double scale = std::max(static_cast<double>(k), 1.0);
  size_t best = weights.size();
  double largest = std::numeric_limits<double>::lowest();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!usable(i)) continue;
    const double behind = weights[i] * scale - static_cast<double>(counts[i]);
    if (best == weights.size() || behind > largest) {
      best = i;
      largest = behind;
    }
  }
  return best;
}

template <class Usable>
BlendOrder greedy_order(std::span<const double> weights, int64_t num_samples, Usable usable) {
  DELTATRAIN_CHECK(weights.size() < 32767, std::to_string(weights.size()));
  BlendOrder order;
  order.source.resize(static_cast<size_t>(num_samples));
  order.sample.resize(static_cast<size_t>(num_samples));
  std::vector<int64_t> counts(weights.size(), 0);
  for (size_t k = 0; k < order.source.size(); ++k) {
    const size_t best =
        furthest_behind(weights, counts, k, [&](size_t i) { return usable(i, counts[i]); });
    order.source[k] = static_cast<int16_t>(best);
    order.sample[k] = counts[best]++;
  }
  return order;
}

}  // namespace

BlendPath parse_blend_path(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.empty())
    throw ConfigError(error_text("data", "", "a prefix of token files", "an empty text"));

  BlendPath path;
  size_t num_numbers = 0;
  if (words.size() % 2 == 0) {
    for (size_t i = 0; i < words.size(); i += 2) num_numbers += as_number(words[i]).has_value();
  }
  if (num_numbers == 0) {
    path.prefixes = std::move(words);
    return path;
  }
  for (size_t i = 0; i < words.size(); i += 2) {
    const std::optional<double> weight = as_number(words[i]);
    if (!weight.has_value() || !(*weight > 0) || std::isinf(*weight)) {
      throw ConfigError(error_text("data", "weight of " + words[i + 1], "a number above 0",
                                   "'" + words[i] + "'"));
    }
    path.weights.push_back(*weight);
    path.prefixes.push_back(words[i + 1]);
  }
  return path;
}

std::array<std::optional<std::pair<double, double>>, 3> parse_split(const std::string& split) {
  std::vector<double> shares;
  size_t i = 0;
  const auto refuse = [&] {
    throw ConfigError(
        error_text("data.split", "", "one to three shares such as 99,1,0", "'" + split + "'"));
  };
  while (i < split.size()) {
    const size_t end = std::min(split.find_first_of(",/ ", i), split.size());
    if (end > i) {
      const std::optional<double> share = as_number(split.substr(i, end - i));
      if (!share.has_value() || !(*share >= 0) || std::isinf(*share)) refuse();
      shares.push_back(*share);
    }
    i = end + 1;
  }
  if (shares.empty() || shares.size() > 3) refuse();
  shares.resize(3, 0.0);
  if (!(numpy_sum(shares) > 0)) refuse();
  shares = normalized(std::move(shares));

  std::array<std::optional<std::pair<double, double>>, 3> parts;
  double begin = 0;
  for (size_t part = 0; part < 3; ++part) {
    const double end = begin + shares[part];
    if (end > begin) parts[part] = {begin, end};
    begin = end;
  }
  return parts;
}

std::pair<int64_t, int64_t> split_sequences(std::pair<double, double> borders,
                                            int64_t num_sequences) {
  const auto n = static_cast<double>(num_sequences);
  // The default rounding mode is to nearest, ties to even.
  return {static_cast<int64_t>(std::nearbyint(borders.first * n)),
          static_cast<int64_t>(std::nearbyint(borders.second * n))};
}

std::vector<double> normalized(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& weight : weights) weight /= sum;
  return weights;
}

BlendSizes blend_sizes(std::span<const double> normalized_weights, int64_t num_samples) {
  BlendSizes sizes;
  for (const double weight : normalized_weights) {
    const double used = std::ceil(static_cast<double>(num_samples) * weight);
    sizes.used.push_back(static_cast<int64_t>(used));
    sizes.made.push_back(static_cast<int64_t>(std::ceil(used * (1 + 0.005))));
  }
  return sizes;
}

BlendOrder blend_order(std::span<const double> weights, int64_t num_samples) {
  return greedy_order(weights, num_samples, [](size_t, int64_t) { return true; });
}

BlendOrder exhaustive_blend_order(std::span<const int64_t> sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (const int64_t size : sizes)
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return greedy_order(weights, total, [&](size_t i, int64_t count) { return count < sizes[i]; });
}

}  // namespace deltatrain::data
